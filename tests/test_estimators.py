"""The scikit-learn estimators: scikit-learn's own checks, and what they promise beyond those."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import forde
from forde import FordeClassifier, FordeError, FordeRegressor

SMALL: dict[str, Any] = {"n_estimators": 2, "hidden": (16,), "epochs": 15, "batch_size": 16, "lr": 0.02}
"""Quick to train and good enough for the accuracy that scikit-learn's checks ask for."""

BOTH = pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])


def small(estimator: type, **options: Any) -> Any:
    return estimator(**{**SMALL, "random_state": 0, **options})


def blobs(n: int = 60, features: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, apart in every feature."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return rng.normal(size=(n, features)) + 2.0 * y[:, None], y


def wave(n: int = 200, noise: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n)


# scikit-learn's contract


WEIGHT_IS_REPETITION = "check_sample_weight_equivalence_on_dense_data"


def failing(estimator: Any) -> dict[str, str]:
    """A row that is repeated falls into other batches and folds than one that weighs twice."""
    return {WEIGHT_IS_REPETITION: "chance decides on batches and folds of rows; tested below where it does not"}


@parametrize_with_checks([FordeClassifier(**SMALL), FordeRegressor(**SMALL)], expected_failed_checks=failing)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


@BOTH
def test_a_weight_is_a_repetition_where_chance_decides_nothing(estimator: type) -> None:
    """One batch of all rows, no folds, and no repulsion, which is between members at rows and not at their weights."""
    whole = {"batch_size": 1000, "calibration": None, "method": "deep-ensemble", "epochs": 5, "network": in_float64}
    getattr(estimator_checks, WEIGHT_IS_REPETITION)(estimator.__name__, small(estimator, **whole))


def in_float64(n_inputs: int, n_outputs: int) -> nn.Module:
    return forde.models.MLP(n_inputs, (8,), n_outputs).double()


@BOTH
def test_fitting_twice_gives_the_same_bits(estimator: type) -> None:
    X, y = blobs()
    first, again = small(estimator).fit(X, y), small(estimator).fit(X, y)
    other = small(estimator, random_state=1).fit(X, y)
    np.testing.assert_array_equal(first.predict_uncertainty(X), again.predict_uncertainty(X))
    assert not np.array_equal(first.predict_uncertainty(X).total, other.predict_uncertainty(X).total)


def test_a_random_state_object_moves_on_between_fits() -> None:
    X, y = blobs()
    model = small(FordeClassifier, random_state=np.random.RandomState(0))
    assert not np.array_equal(model.fit(X, y).predict_proba(X), model.fit(X, y).predict_proba(X))


@BOTH
def test_fit_leaves_global_random_states_alone(estimator: type) -> None:
    X, y = blobs()
    before = torch.random.get_rng_state().clone(), np.random.get_state()[1].copy()
    small(estimator).fit(X, y)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


@BOTH
def test_clone_keeps_options_and_drops_what_was_fitted(estimator: type) -> None:
    X, y = blobs()
    model = small(estimator, method=forde.method("forde-tuned", alpha=0.2), hidden=[8]).fit(X, y)
    copy = clone(model)
    assert copy.hidden == [8] and copy.method.name == "forde-tuned"
    with pytest.raises(NotFittedError):
        copy.predict(X)


@BOTH
def test_pickle_and_joblib_keep_predictions(estimator: type, tmp_path: Path) -> None:
    X, y = blobs()
    model = small(estimator).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        np.testing.assert_array_equal(copy.predict_uncertainty(X), model.predict_uncertainty(X))
        assert copy.history_["loss"] == model.history_["loss"]


@BOTH
def test_pipeline_and_grid_search(estimator: type) -> None:
    X, y = blobs()
    pipeline = make_pipeline(StandardScaler(), small(estimator, epochs=3))
    name = estimator.__name__.lower()
    grid = {f"{name}__method": ["deep-ensemble", "forde-pca"], f"{name}__lr": [1e-9, 0.02]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_params_[f"{name}__lr"] == 0.02
    assert search.predict(X).shape == (60,)


def test_set_params_and_every_registered_method() -> None:
    X, y = blobs(n=40)
    for name in forde.methods():
        model = small(FordeClassifier, epochs=2).set_params(method=name).fit(X, y)
        assert np.isfinite(model.predict_proba(X)).all(), name
        assert np.isfinite(small(FordeRegressor, epochs=2, method=name).fit(X, y).predict(X)).all(), name


def test_forde_is_imported_without_scikit_learn() -> None:
    code = (
        "import sys, forde; assert 'sklearn' not in sys.modules; forde.FordeClassifier; assert 'sklearn' in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# Inputs


def test_data_frame_and_string_labels() -> None:
    iris = load_iris(as_frame=True)
    names = iris.target_names[iris.target]
    model = small(FordeClassifier, epochs=30).fit(iris.data, pd.Series(names))
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert list(model.feature_names_in_) == list(iris.data.columns)
    assert model.score(iris.data, names) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        model.predict(iris.data.rename(columns=str.upper))


def test_nested_lists_of_numbers() -> None:
    X, y = blobs()
    model = small(FordeClassifier).fit(X.tolist(), y.astype(bool).tolist())
    np.testing.assert_array_equal(model.predict(X.tolist()), small(FordeClassifier).fit(X, y).predict(X) == 1)


@BOTH
def test_units_of_the_inputs_do_not_matter(estimator: type) -> None:
    X, y = blobs()
    scale, shift = np.array([1e6, 1.0, 1e-6]), np.array([1e8, 0.0, 0.0])
    plain = small(estimator).fit(X, y).predict_uncertainty(X)
    scaled = small(estimator).fit(X * scale + shift, y).predict_uncertainty(X * scale + shift)
    np.testing.assert_allclose(scaled, plain, rtol=1e-3, atol=1e-5)


@BOTH
def test_constant_columns_do_no_harm(estimator: type) -> None:
    X, y = blobs()
    constants = np.tile([0.1, 1e9, 0.0], (60, 1))  # 0.1 is not exact in binary, so its standard deviation may be 1e-17
    model = small(estimator).fit(np.hstack([X, constants]), y)
    assert np.isfinite(model.predict_uncertainty(np.hstack([X, constants])).total).all()
    assert model.score(np.hstack([X, constants]), y) > 0.7


@BOTH
def test_only_constant_columns_are_refused(estimator: type) -> None:
    with pytest.raises(FordeError, match="every column of X is constant"):
        small(estimator).fit(np.ones((10, 2)), np.arange(10) % 2)


@BOTH
def test_a_single_feature(estimator: type) -> None:
    X, y = blobs(features=1)
    assert small(estimator, epochs=30).fit(X, y).score(X, y) > 0.4


@BOTH
def test_another_number_of_features_is_refused(estimator: type) -> None:
    X, y = blobs(features=3)
    with pytest.raises(ValueError, match=r"X has 2 features, but Forde.* is expecting 3 features"):
        small(estimator, epochs=1).fit(X, y).predict(X[:, :2])


@BOTH
@pytest.mark.parametrize("n", [2, 16, 17, 33])
def test_any_number_of_rows_with_batch_norm(estimator: type, n: int) -> None:
    """17 and 33 rows leave a last batch of one, which BatchNorm cannot normalise."""
    X, y = blobs(n)
    model = small(estimator, batch_norm=True, epochs=2).fit(X, y)
    assert np.isfinite(model.predict_uncertainty(X).total).all()


# Options


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(FordeError, match="did you mean 'forde-pca'"):
        small(FordeClassifier, method="forde-pcs").fit(*blobs())


def test_method_options_reach_the_method() -> None:
    X, y = blobs()
    options = {"alpha": 0.1, "weight_decay": 0.25}
    model = small(FordeClassifier, method="forde-tuned", method_options=options).fit(X, y)
    assert model.history_.method.kernel.metric.alpha == 0.1
    assert model.history_.method.priors[0].weight_decay == 0.25
    with pytest.raises(FordeError, match="unknown option of forde-pca 'alpha'"):
        small(FordeClassifier, method_options={"alpha": 0.1}).fit(X, y)
    with pytest.raises(FordeError, match=r"method is a forde\.Method"):
        small(FordeClassifier, method=forde.Method(), method_options=options).fit(X, y)


@BOTH
def test_every_option_of_training_reaches_it(estimator: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in the fitted ensemble, in the records, and in what `forde.fit` is called with."""
    seen: dict[str, Any] = {}
    real = forde.fit

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr("forde.estimators.training.fit", noting)
    X, y = blobs()
    options = {"n_estimators": 3, "method": "lit", "hidden": (5, 4), "batch_norm": True, "epochs": 10}
    fitted = estimator(**options, batch_size=9, lr=0.004, weight_decay=0.03, random_state=1).fit(X, y)
    assert fitted.history_.method.name == "lit"
    assert [prior.weight_decay for prior in fitted.history_.method.priors] == [0.03]
    assert seen["batch_size"] == 9
    # Constant to half of the epochs, then linear to 1 % at nine tenths.
    expected = [0.004 * factor for factor in (1, 1, 1, 1, 1, 1, 0.7525, 0.505, 0.2575, 0.01)]
    assert fitted.history_["lr"] == pytest.approx(expected)
    members = fitted.ensemble_.members
    assert len(members) == 3
    for member in members:
        widths = [layer.out_features for layer in member.modules() if isinstance(layer, nn.Linear)]
        assert widths == [5, 4, 2], "two classes, or a mean and a variance"
        assert sum(isinstance(layer, nn.BatchNorm1d) for layer in member.modules()) == 2


def test_random_state_decides_the_start_and_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[tuple[int, int]] = []
    real = forde.fit

    def noting(ensemble: forde.Ensemble, *args: Any, **kwargs: Any) -> Any:
        seeds.append((ensemble.seed, kwargs["seed"]))
        return real(ensemble, *args, **kwargs)

    monkeypatch.setattr("forde.estimators.training.fit", noting)
    for random_state in (0, 1):
        small(FordeClassifier, epochs=1, random_state=random_state).fit(*blobs())
    (start, order), (other_start, other_order) = seeds
    assert start != other_start and order != other_order


def test_options_of_the_method_come_before_those_of_the_estimator() -> None:
    fitted = small(FordeClassifier, epochs=1, weight_decay=0.5, method_options={"weight_decay": 0.25}).fit(*blobs())
    assert [prior.weight_decay for prior in fitted.history_.method.priors] == [0.25]


@BOTH
def test_a_row_predicts_the_same_alone_as_in_a_batch(estimator: type) -> None:
    X, y = blobs()
    fitted = small(estimator).fit(X, y)
    together = fitted.predict_uncertainty(X).total
    alone = np.concatenate([fitted.predict_uncertainty(X[i : i + 1]).total for i in range(len(X))])
    np.testing.assert_allclose(alone, together, rtol=1e-12, atol=1e-14)


def test_own_network() -> None:
    X, y = blobs()
    asked: list[tuple[int, int]] = []

    def network(n_inputs: int, n_outputs: int) -> nn.Module:
        asked.append((n_inputs, n_outputs))
        return nn.Sequential(nn.Linear(n_inputs, 8), nn.Tanh(), nn.Linear(8, n_outputs))

    assert small(FordeClassifier, network=network).fit(X, y).score(X, y) > 0.9
    small(FordeRegressor, network=network, epochs=1, calibration=None).fit(X, np.column_stack([y, y, y]))
    small(FordeRegressor, network=network, epochs=1, calibration=None, noise=0.1).fit(X, y)
    twins = [(3, 2)] * 10
    assert asked == [(3, 2), (3, 2), *twins, (3, 6), (3, 6), (3, 1), (3, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 64}, "a sequence of layer sizes"),
        ({"n_estimators": 0}, "n_estimators is 0, but a whole number of at least 1"),
        ({"n_estimators": 2.5}, "n_estimators is 2.5, but a whole number of at least 1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"device": "abacus"}, "unknown device"),
    ],
)
def test_wrong_options_are_refused_by_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FordeError, match=message):
        small(FordeClassifier, **options).fit(*blobs())


def test_one_class_is_refused() -> None:
    with pytest.raises(FordeError, match="one class, 'a', but at least 2 classes"):
        small(FordeClassifier).fit([[0.0], [1.0]], ["a", "a"])


def test_history_has_one_record_per_epoch() -> None:
    model = small(FordeClassifier, epochs=25).fit(*blobs())
    losses = model.history_["loss"]
    assert len(losses) == 25 and losses[-1] < losses[0]


# Classification


def test_uncertainty_of_a_classifier_adds_up_and_grows_away_from_the_data() -> None:
    X, y = blobs()
    model = small(FordeClassifier, n_estimators=5).fit(X, y)
    here = model.predict_uncertainty(X)
    np.testing.assert_allclose(here.total, here.aleatoric + here.epistemic, atol=1e-12)
    probs = model.predict_proba(X)
    np.testing.assert_allclose(here.total, -(probs * np.log(probs)).sum(1), atol=1e-12)
    logits = model.ensemble_.predict(model.input_scaler_.transform(X)).member_logits / model.temperature_
    own = logits.softmax(-1).numpy()
    np.testing.assert_allclose(here.aleatoric, -(own * np.log(own)).sum(-1).mean(0), atol=1e-12)
    sideways = 1 + 10 * np.random.default_rng(1).normal(size=(200, 3)) @ (np.eye(3) - 1 / 3)  # along the boundary
    assert model.predict_uncertainty(sideways).epistemic.mean() > 2 * here.epistemic.mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "accuracy", "loss"), [(load_iris, 0.93, 0.2), (load_wine, 0.95, 0.12), (load_breast_cancer, 0.95, 0.12)]
)
def test_accuracy_on_real_tables(load: Any, accuracy: float, loss: float) -> None:
    """Every row is predicted by a model that has not seen it; one held-out part alone would be too noisy a measure."""
    X, y = load(return_X_y=True)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    probs = cross_val_predict(FordeClassifier(n_estimators=5, random_state=0), X, y, cv=folds, method="predict_proba")
    assert np.mean(probs.argmax(1) == y) >= accuracy
    assert log_loss(y, probs) <= loss


# Regression


def test_units_of_the_targets_are_kept() -> None:
    X, y = wave()
    plain, scaled = small(FordeRegressor).fit(X, y), small(FordeRegressor).fit(X, 1000 * y + 5e4)
    mean, std = plain.predict(X, return_std=True)
    scaled_mean, scaled_std = scaled.predict(X, return_std=True)
    assert mean.shape == std.shape == (200,)
    np.testing.assert_allclose(scaled_mean, 1000 * mean + 5e4, rtol=1e-3, atol=10)
    np.testing.assert_allclose(scaled_std, 1000 * std, rtol=1e-2)
    np.testing.assert_allclose(
        scaled.predict_uncertainty(X).epistemic, 1e6 * plain.predict_uncertainty(X).epistemic, rtol=0.05, atol=10
    )


def test_variances_add_up_to_the_squared_std() -> None:
    X, y = wave()
    model = small(FordeRegressor).fit(X, y)
    total, aleatoric, epistemic = model.predict_uncertainty(X)
    np.testing.assert_allclose(total, aleatoric + epistemic)
    np.testing.assert_allclose(total, model.predict(X, return_std=True)[1] ** 2)


@pytest.mark.slow
def test_std_covers_new_data_and_follows_the_noise() -> None:
    def noisy(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, size=(600, 2))
        noise = np.where(X[:, 0] > 0, 1.0, 0.2)
        return X, np.sin(2 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=600), noise

    X, y, _ = noisy(0)
    new_X, new_y, noise = noisy(1)
    model = FordeRegressor(n_estimators=5, random_state=0).fit(X, y)
    mean, std = model.predict(new_X, return_std=True)
    assert 0.9 < np.mean(np.abs(new_y - mean) < 1.96 * std) < 0.99
    learned = np.sqrt(model.predict_uncertainty(new_X).aleatoric)
    assert learned[noise == 1.0].mean() == pytest.approx(1.0, rel=0.25)
    assert learned[noise == 0.2].mean() < 0.45


def test_fixed_noise_is_in_target_units() -> None:
    X, y = wave()
    model = small(FordeRegressor, noise=20.0).fit(X, 100 * y)
    np.testing.assert_allclose(model.predict_uncertainty(X).aleatoric, 400.0)
    assert model.score(X, 100 * y) > 0.8


@pytest.mark.parametrize("noise", [0.0, -1.0, "known", None])
def test_wrong_noise_is_refused(noise: Any) -> None:
    with pytest.raises(FordeError, match="'learned' or a positive standard deviation"):
        small(FordeRegressor, noise=noise).fit(*wave())


def test_several_targets_of_different_units() -> None:
    X, y = wave()
    targets = np.column_stack([y, 1e4 * X[:, 0]])
    model = small(FordeRegressor, epochs=40).fit(X, targets)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == model.predict_uncertainty(X).epistemic.shape == (200, 2)
    assert model.score(X, targets) > 0.8
    with pytest.raises(FordeError, match="y has 2"):
        small(FordeRegressor, noise=1.0).fit(X, targets)


def test_a_column_of_targets_comes_back_as_a_column() -> None:
    X, y = wave(n=40)
    column = small(FordeRegressor).fit(X, y[:, None]).predict(X)
    np.testing.assert_allclose(column, small(FordeRegressor).fit(X, y).predict(X)[:, None])


def test_constant_targets() -> None:
    X, _ = wave()
    mean, std = small(FordeRegressor).fit(X, np.full(200, 7.1)).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 7.1, atol=0.2)
    assert np.isfinite(std).all()


@pytest.mark.slow
def test_error_on_a_real_table() -> None:
    X, y = load_diabetes(return_X_y=True)
    train_X, test_X, train_y, test_y = train_test_split(X, y, test_size=0.3, random_state=0)
    model = FordeRegressor(n_estimators=5, random_state=0).fit(train_X, train_y)
    assert model.score(test_X, test_y) > 0.35
    mean, std = model.predict(test_X, return_std=True)
    assert np.mean(np.abs(test_y - mean) < 1.96 * std) > 0.85


def test_log_probabilities() -> None:
    X, y = blobs(features=3)
    classifier = small(FordeClassifier).fit(X, y)
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), classifier.predict_proba(X), rtol=1e-10)
    assert np.isfinite(classifier.predict_log_proba(1e6 * X)).all()
