"""The estimators among scikit-learn's tools: its checks with new options, routing, searches, inspection, joblib."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import accuracy_score
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    StratifiedKFold,
    cross_val_score,
    learning_curve,
)
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from forde import FordeClassifier, FordeRegressor

SMALL: dict[str, Any] = {"n_estimators": 2, "hidden": (16,), "epochs": 15, "batch_size": 16, "lr": 0.02}
QUICK: dict[str, Any] = {
    "n_estimators": 3, "hidden": (8,), "epochs": 8, "batch_size": 32, "method": "deep-ensemble", "random_state": 0,
}  # fmt: skip
BOTH = pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])


def failing(estimator: Any) -> dict[str, str]:
    """What scikit-learn asks for and these options are not meant to give."""
    found = {"check_sample_weight_equivalence_on_dense_data": "chance decides on batches and folds of rows"}
    if estimator.warm_start:
        found["check_supervised_y_2d"] = "fits twice and expects the same, but the second fit goes on with the first"
    return found


@pytest.mark.slow
@parametrize_with_checks(
    [
        FordeClassifier(**SMALL, calibration="holdout", validation_fraction=0.2, class_weight="balanced"),
        FordeClassifier(**SMALL, early_stopping=True, n_iter_no_change=5, warm_start=True),
        FordeRegressor(**SMALL, early_stopping=True, calibration="holdout", warm_start=True),
        FordeRegressor(**SMALL, calibration="out-of-fold", feature_preprocessing=None),
    ],
    expected_failed_checks=failing,
)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


def rows(n: int = 120) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Column `b` decides; a fifth of the labels is wrong, and weighs nothing."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    wrong = rng.random(n) < 0.2
    return X, (X["b"].to_numpy() > 0) ^ wrong, np.where(wrong, 0.0, rng.uniform(0.5, 1.5, n))


def target(estimator: type, y: np.ndarray) -> np.ndarray:
    return y if estimator is FordeClassifier else y.astype(float)


@BOTH
def test_new_options_are_cloned_and_pickled(estimator: type) -> None:
    X, y, _ = rows()
    options = {
        "calibration": "holdout", "validation_fraction": 0.3, "early_stopping": True, "n_iter_no_change": 2,
        "feature_preprocessing": None, "warm_start": True, "n_jobs": 1, "repulsion_every": 2, "verbose": False,
    }  # fmt: skip
    model = estimator(**QUICK, **options).fit(X, target(estimator, y))
    assert {name: clone(model).get_params()[name] for name in options} == options
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.feature_importances_, model.feature_importances_)
    np.testing.assert_array_equal(copy.predict_uncertainty(X), model.predict_uncertainty(X))
    assert copy.calibration_ == "holdout" and copy.fit(X, target(estimator, y)).n_epochs_ > model.n_epochs_


# Weights of rows that are routed


def test_weights_are_routed_through_cross_validation() -> None:
    X, y, weights = rows()
    folds = StratifiedKFold(2)
    with sklearn.config_context(enable_metadata_routing=True):
        model = FordeClassifier(**QUICK).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        found = cross_val_score(model, X, y, cv=folds, params={"sample_weight": pd.Series(weights)})
    expected = []
    for train, test in folds.split(X, y):
        labels = FordeClassifier(**QUICK).fit(X.iloc[train], y[train], weights[train]).predict(X.iloc[test])
        expected.append(accuracy_score(y[test], labels, sample_weight=weights[test]))
    assert found.tolist() == expected and expected != cross_val_score(FordeClassifier(**QUICK), X, y, cv=folds).tolist()


@BOTH
def test_weights_are_routed_through_a_search_over_a_pipeline(estimator: type) -> None:
    X, y, weights = rows()
    y = target(estimator, y)
    with sklearn.config_context(enable_metadata_routing=True):
        model = estimator(**QUICK).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler, model)
        grid = {f"{estimator.__name__.lower()}__lr": [1e-9, 0.02]}
        search = GridSearchCV(pipeline, grid, cv=2).fit(X, y, sample_weight=weights)
        by_hand = clone(pipeline).set_params(**search.best_params_).fit(X, y, sample_weight=weights)
    assert list(search.best_params_.values()) == [0.02]
    np.testing.assert_array_equal(search.predict(X), by_hand.predict(X))
    unweighted = clone(by_hand).fit(X, y)
    assert not np.array_equal(
        unweighted[-1].predict_uncertainty(X.to_numpy()), by_hand[-1].predict_uncertainty(X.to_numpy())
    )


# joblib


def fitted(estimator: type, state: int) -> np.ndarray:
    X, y, weights = rows()
    model = estimator(**{**QUICK, "random_state": state}).fit(X, target(estimator, y), weights)
    return np.stack(model.predict_uncertainty(X))


@pytest.mark.parametrize("backend", [pytest.param("loky", marks=pytest.mark.slow), "threading"])
def test_jobs_of_joblib_give_what_each_gives_alone(backend: str) -> None:
    before = torch.get_num_threads()
    jobs = [(estimator, state) for estimator in (FordeClassifier, FordeRegressor) for state in range(2)]
    found = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(fitted)(*job) for job in jobs)
    for job, each in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(each, fitted(*job))
    assert torch.get_num_threads() == before


def test_a_search_in_threads() -> None:
    X, y, _ = rows()
    search = GridSearchCV(FordeClassifier(**QUICK), {"weight_decay": [1e-3, 1.0]}, cv=2, n_jobs=2)
    with joblib.parallel_config("threading"):
        search.fit(X, y)
    alone = clone(search).set_params(n_jobs=None).fit(X, y)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])


# What is built on estimators


@pytest.mark.parametrize("resource", ["n_samples", "epochs", "n_estimators"])
def test_successive_halving(resource: str) -> None:
    X, y, _ = rows()
    limits = {} if resource == "n_samples" else {"min_resources": 2, "max_resources": 6}
    grid = {"lr": [1e-9, 0.02, 1e-8]}
    search = HalvingGridSearchCV(FordeClassifier(**QUICK), grid, cv=2, resource=resource, random_state=0, **limits)
    assert search.fit(X, y).best_params_["lr"] == 0.02


def test_calibrated_by_scikit_learn() -> None:
    X, y, weights = rows()
    model = CalibratedClassifierCV(FordeClassifier(**QUICK, calibration=None), cv=2).fit(X, y, sample_weight=weights)
    probs = model.predict_proba(X)
    inner = model.calibrated_classifiers_[0].estimator.predict_proba(X)
    assert probs.shape == (120, 2) and not np.allclose(probs, inner) and model.score(X, y, weights) > 0.8


def test_inspection() -> None:
    X, _, _ = rows()
    X["kind"] = ["x", "y"] * 60
    y = 2 * X["b"] + (X["kind"] == "y")
    model = FordeRegressor(**{**QUICK, "epochs": 40}).fit(X, y)
    permuted = permutation_importance(model, X, y, n_repeats=2, random_state=0).importances_mean
    assert permuted.argmax() == model.feature_importances_.argmax() == 1
    found = partial_dependence(model, X, ["kind"], categorical_features=["kind"])["average"][0]
    np.testing.assert_allclose(found, [model.predict(X.assign(kind=kind)).mean() for kind in "xy"])
    assert found[1] > found[0] + 0.4


def test_selection_of_columns() -> None:
    X, _, _ = rows()
    y = np.column_stack([X["b"], 1000 * X["b"]])
    assert RFE(FordeClassifier(**QUICK), n_features_to_select=1).fit(X, X["b"] > 0).ranking_[1] == 1
    assert SelectFromModel(FordeRegressor(**QUICK)).fit(X, y).get_feature_names_out().tolist() == ["b"]


CLASSIFIER = FordeClassifier(**QUICK)
COMMITTEES: list[Callable[[], Any]] = [
    lambda: VotingClassifier([("a", CLASSIFIER), ("b", clone(CLASSIFIER))], voting="soft"),
    lambda: StackingClassifier([("a", CLASSIFIER)], cv=2),
    lambda: BaggingClassifier(CLASSIFIER, 2, random_state=0),
    lambda: AdaBoostClassifier(CLASSIFIER, n_estimators=2, random_state=0),
]


@pytest.mark.parametrize("make", COMMITTEES, ids=["voting", "stacking", "bagging", "boosting"])
def test_committees(make: Callable[[], Any]) -> None:
    """Bagging and boosting weight rows themselves, some with 0."""
    X, y, weights = rows()
    model = make().fit(X, y, sample_weight=weights + 0.01)
    assert model.score(X, y, weights) > 0.8


def test_several_targets_by_scikit_learn() -> None:
    X, _, weights = rows()
    y = np.column_stack([X["b"], X["b"] - X["a"]])
    for many in (MultiOutputRegressor(FordeRegressor(**QUICK)), RegressorChain(FordeRegressor(**QUICK))):
        assert many.fit(X, y, sample_weight=weights).predict(X).shape == (120, 2)
    each = MultiOutputRegressor(FordeRegressor(**QUICK)).fit(X, y).predict(X)
    np.testing.assert_array_equal(each[:, 1], FordeRegressor(**QUICK).fit(X, y[:, 1]).predict(X))


def test_targets_on_another_scale() -> None:
    X, _, _ = rows()
    model = TransformedTargetRegressor(FordeRegressor(**QUICK), func=np.log, inverse_func=np.exp)
    assert (model.fit(X, np.exp(X["b"])).predict(X) > 0).all()


def test_a_learning_curve_in_parts() -> None:
    X, y, _ = rows()
    _, train, test = learning_curve(
        FordeClassifier(**QUICK), X, y, cv=2, train_sizes=[0.5, 1.0], exploit_incremental_learning=True
    )
    assert train.shape == test.shape == (2, 2) and train.max() > 0.5
