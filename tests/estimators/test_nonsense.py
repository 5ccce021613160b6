"""What users get wrong: each mistake is one sentence that says what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from forde import FordeClassifier, FordeError, FordeRegressor
from forde.estimators.targets import row_weights

QUICK: dict[str, Any] = {"n_estimators": 2, "hidden": (8,), "epochs": 2, "batch_size": 32, "random_state": 0}
BOTH = pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])
X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
COUNT, SWITCH = "a whole number of at least 1", "True or False"


@pytest.mark.parametrize(
    ("option", "wrong", "expected"),
    [
        ("n_estimators", "10", COUNT),
        ("method", 3, r"a name from forde\.methods\(\) or a forde\.Method"),
        ("method_options", 3, "a dict of the method's options"),
        ("hidden", "64", "a sequence of layer sizes"),
        ("hidden", (64, 0), "a sequence of layer sizes"),
        ("batch_norm", "yes", SWITCH),
        ("network", 3, "a function"),
        ("epochs", 1.5, COUNT),
        ("repulsion_every", 0, COUNT),
        ("batch_size", "big", "'auto' or a whole number of at least 1"),
        ("lr", 0, "a positive number"),
        ("lr", float("nan"), "a positive number"),
        ("weight_decay", -1, "0 or a positive number"),
        ("n_jobs", 0, "None, a number of threads, or -1"),
        ("n_jobs", 1.5, "None, a number of threads, or -1"),
        ("validation_fraction", 2, "a share between 0 and 1"),
        ("validation_fraction", None, "a share between 0 and 1"),
        ("early_stopping", "yes", SWITCH),
        ("n_iter_no_change", 0, COUNT),
        ("warm_start", "no", SWITCH),
        ("verbose", "loud", SWITCH),
    ],
)
@BOTH
def test_options(estimator: type, option: str, wrong: Any, expected: str) -> None:
    """Whether the fit needs them or not, before anything is trained."""
    model = estimator(**{**QUICK, option: wrong})
    with pytest.raises(FordeError, match=rf"{option} is .*, but {expected}"):
        model.fit(X, Y)
    with pytest.raises(FordeError, match=rf"{option} is .*, but {expected}"):
        model.partial_fit(X, Y, **({"classes": [0, 1]} if estimator is FordeClassifier else {}))
    assert not hasattr(model, "ensemble_")


def test_options_that_numpy_made() -> None:
    options = {
        "n_estimators": np.int64(2),
        "lr": np.float32(0.02),
        "early_stopping": np.bool_(True),
        "hidden": np.array([8]),
    }
    assert FordeClassifier(**{**QUICK, **options}, verbose=1).fit(X, Y).n_epochs_ >= 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("balance", "class_weight is 'balance', but 'balanced', a dict"),
        ([1, 2], "but 'balanced', a dict"),
        ({0: -1, 1: 1}, "but 'balanced', a dict"),
        ({0: "a", 1: 1}, "but 'balanced', a dict"),
        ({"0": 1, "1": 2}, "class_weight names '[01]', but the labels are '0', '1'"),
    ],
)
def test_class_weights(wrong: Any, message: str) -> None:
    with pytest.raises(FordeError, match=message):
        FordeClassifier(**QUICK, class_weight=wrong).fit(X, Y)


@BOTH
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.ones(59), r"sample_weight has shape \[59\], but one weight for each row, \[60\], was expected"),
        (np.ones((60, 1)), r"sample_weight has shape \[60, 1\]"),
        ("balanced", "sample_weight is 'balanced', but one number for each row was expected"),
        (np.r_[np.nan, np.ones(59)], "sample_weight of row 0 is nan, but 0 or a positive number"),
        (np.r_[np.ones(59), -1], r"sample_weight of row 59 is -1\.0, but 0 or a positive number"),
        (np.zeros(60), "every sample_weight is zero"),
    ],
)
def test_weights(estimator: type, wrong: Any, message: str) -> None:
    with pytest.raises(FordeError, match=message):
        estimator(**QUICK).fit(X, Y, sample_weight=wrong)


@BOTH
def test_weights_that_leave_nothing_to_judge_by(estimator: type) -> None:
    weights = np.r_[np.zeros(30), 1.0, 1.0, np.zeros(28)]
    with pytest.raises(FordeError, match="rows that are left out have weight 0, so calibration='holdout' has noth"):
        estimator(**QUICK, calibration="holdout").fit(X, Y, weights)


def test_weights_of_pandas_are_copied() -> None:
    given = pd.Series([1.0, 2.0])
    weights = row_weights(given, 2)
    assert weights is not None and weights.flags.writeable and weights.tolist() == [1, 2]
    weights[0] = 5
    assert given[0] == 1 and row_weights(3, 2).tolist() == [3, 3] and row_weights(None, 2) is None  # type: ignore[union-attr]


@BOTH
def test_targets_that_are_missing(estimator: type) -> None:
    floats, objects = Y.astype(float), Y.astype(object)
    floats[[4, 7]], objects[[4, 7]] = np.nan, None
    for y in (floats, objects, objects.tolist(), pd.Series(floats).astype("Int64"), pd.DataFrame({"y": floats})):
        with pytest.raises(FordeError, match="y is missing in 2 of 60 rows, the first is row 4; leave these rows out"):
            estimator(**QUICK).fit(X, y)


def test_targets_of_another_kind() -> None:
    with pytest.raises(FordeError, match="y holds text, such as 'no', but numbers were expected; use FordeClassifier"):
        FordeRegressor(**QUICK).fit(X, np.where(Y, "yes", "no")[np.argsort(Y)])
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        FordeClassifier(**QUICK).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FordeRegressor(**QUICK).fit(X, Y[:50])
    with pytest.raises(ValueError, match="infinity"):
        FordeRegressor(**QUICK).fit(X, np.where(Y, np.inf, 1.0))


def test_early_stopping_of_one_network() -> None:
    with pytest.raises(FordeError, match=r"swag makes its members of one network .*; use early_stopping=False"):
        FordeRegressor(**QUICK, method="swag", early_stopping=True).fit(X, Y)


def test_what_a_fitted_model_is_asked_for() -> None:
    model = FordeRegressor(**QUICK).fit(X, Y)
    with pytest.raises(FordeError, match=r"confidence is 95, but a share between 0 and 1 was expected; pass 0\.95"):
        model.predict_interval(X, confidence=95)
    with pytest.raises(FordeError, match=r"quantiles are \[5, 95\], but shares between 0 and 1"):
        model.predict_quantiles(X, [5, 95])
    with pytest.raises(FordeError, match="n_samples is 0, but a whole number"):
        model.sample_y(X, 0)


def test_what_is_not_fitted_yet() -> None:
    for ask in ("predict", "predict_interval", "predict_quantiles", "predict_uncertainty", "predict_distribution",
                "sample_y", "feature_importances"):  # fmt: skip
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(FordeRegressor(), ask)(X)
    for ask in ("predict", "predict_proba", "predict_log_proba", "predict_uncertainty", "feature_importances"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(FordeClassifier(), ask)(X)
