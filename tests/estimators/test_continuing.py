"""Training that goes on: in parts, from where it ended, or until nothing gets better."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from forde import FordeClassifier, FordeError, FordeRegressor

QUICK: dict[str, Any] = {
    "n_estimators": 3, "hidden": (16,), "epochs": 10, "batch_size": 32, "lr": 0.01, "random_state": 0,
}  # fmt: skip
BOTH = pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])


def rows(n: int = 160, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


@BOTH
def test_warm_start_goes_on_with_the_members(estimator: type) -> None:
    X, y = rows()
    cold = estimator(**QUICK, warm_start=True, calibration=None).fit(X, y)
    first, history = cold.ensemble_, cold.history_["loss"]
    warm = pickle.loads(pickle.dumps(cold)).fit(X, y)
    assert warm.n_epochs_ == 20 and warm.history_["loss"][0] < history[0]
    again = estimator(**QUICK, calibration=None).fit(X, y).fit(X, y)
    assert again.history_["loss"] == history and again.n_epochs_ == 10
    assert cold.ensemble_ is first, "another fit does not change it"


@BOTH
def test_warm_members_leave_out_the_rows_that_they_had_left_out(estimator: type) -> None:
    """Otherwise they would be judged by rows that they know, and calibrated too well."""
    X, _ = rows(80)
    y = np.random.default_rng(1).integers(0, 2, 80)  # chance, which can be learned by heart only
    state = np.random.RandomState(0)  # which has moved on when the next fit begins
    model = estimator(**{**QUICK, "n_estimators": 5, "random_state": state}, warm_start=True).fit(X, y)
    for _ in range(3):
        model.fit(X, y)
    best = np.nanmin(model.history_["validation_calibrated_nll"])
    chance = np.log(2) if estimator is FordeClassifier else 0.5 * np.log(2 * np.pi * np.e)
    assert best > chance - 0.03 and model.history_["loss"][-1] < chance - 0.05


@BOTH
def test_a_table_in_parts(estimator: type) -> None:
    X, y = rows(640)
    model = estimator(**QUICK)
    for epoch in range(6):
        for part in np.array_split(np.arange(640), 4):
            own = {"classes": [0, 1]} if estimator is FordeClassifier and not epoch else {}
            model.partial_fit(X[part], y[part], **own)
    assert model.n_epochs_ == 24 and model.calibration_ is None
    new, expected = rows(500, seed=1)
    assert model.score(new, expected) > (0.9 if estimator is FordeClassifier else 0.5)


def test_parts_go_on_where_the_optimizer_was() -> None:
    """Two parts come to the same as two epochs, whose order of rows one knows."""
    X, y = rows(64)
    whole = {**QUICK, "batch_size": 64, "method": "deep-ensemble"}
    parts = FordeRegressor(**whole)
    for _ in range(12):
        parts.partial_fit(X, y)
    # The falling rate of `fit` is constant in the first half of its epochs.
    long = FordeRegressor(**{**whole, "epochs": 24}, calibration=None).fit(X, y)
    short = FordeRegressor(**{**whole, "epochs": 12}, calibration=None).fit(X, y)
    assert parts.history_["loss"][0] == pytest.approx(long.history_["loss"][11], rel=1e-4)
    assert parts.history_["loss"][0] != pytest.approx(short.history_["loss"][11], rel=1e-4)


@BOTH
def test_a_part_after_a_fit_keeps_its_calibration(estimator: type) -> None:
    X, y = rows()
    model = estimator(**QUICK).fit(X, y)
    scale = model.temperature_ if estimator is FordeClassifier else model.noise_scale_
    model.partial_fit(*rows(seed=1))
    assert model.calibration_ == "out-of-fold"
    assert scale == (model.temperature_ if estimator is FordeClassifier else model.noise_scale_) != 1


def test_a_part_and_a_fit_go_on_with_the_members_that_there_are() -> None:
    """A part has no use for twins, and a fit after it gets new ones."""
    X, y = rows()
    model = FordeRegressor(**QUICK, warm_start=True).fit(X, y)
    before = model.predict(X)
    assert model._start.ensemble.n_members == 13 and model.ensemble_.n_members == 3
    model.set_params(lr=1e-6).partial_fit(X, y)
    assert model._start.ensemble.n_members == 3
    np.testing.assert_allclose(model.predict(X), before, atol=1e-3)
    model.fit(X, y)
    assert model._start.ensemble.n_members == 13 and model.ensemble_.n_members == 3
    np.testing.assert_allclose(model.predict(X), before, atol=1e-2)


@BOTH
def test_early_stopping_ends_where_nothing_gets_better(estimator: type) -> None:
    X, _ = rows(120)
    y = np.random.default_rng(0).integers(0, 2, 120)
    options = {**QUICK, "epochs": 200, "n_iter_no_change": 20}
    model = estimator(**options, early_stopping=True).fit(X, y)
    assert model.n_epochs_ <= len(model.history_) - 20 and len(model.history_) < 200
    assert model.history_.stopped is not None
    with pytest.raises(FordeError, match="early_stopping needs rows that members have not seen"):
        estimator(**options, early_stopping=True, calibration=None).fit(X, y)


def test_balanced_classes_count_the_same() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [180, 20])
    X = rng.normal(size=(200, 2)) + 1.5 * y[:, None]
    options = {**QUICK, "epochs": 20, "method": "deep-ensemble"}
    plain, balanced = (FordeClassifier(**options, class_weight=weight).fit(X, y) for weight in (None, "balanced"))
    assert balanced.predict(X)[y == 1].mean() > plain.predict(X)[y == 1].mean() + 0.2
    by_hand = FordeClassifier(**options).fit(X, y, np.where(y == 1, 5.0, 5 / 9))
    np.testing.assert_allclose(by_hand.predict_proba(X), balanced.predict_proba(X), atol=1e-5)
    twice = FordeClassifier(**options, class_weight={0: 1, 1: 2}).fit(X, y, np.where(y == 1, 2.5, 5 / 9))
    np.testing.assert_allclose(twice.predict_proba(X), balanced.predict_proba(X), atol=1e-5)


def test_what_cannot_go_on_is_refused() -> None:
    X, y = rows(60)
    classifier, regressor = FordeClassifier(**QUICK, warm_start=True), FordeRegressor(**QUICK, warm_start=True)
    with pytest.raises(FordeError, match=r"pass classes=np\.unique"):
        classifier.partial_fit(X, y)
    classifier.fit(X, y)
    regressor.fit(X, y)
    with pytest.raises(FordeError, match="y has others"):
        classifier.fit(X, y + 1)
    with pytest.raises(FordeError, match="label '2' is not among the classes"):
        classifier.partial_fit(X, y + 1)
    with pytest.raises(FordeError, match="classes are '0', '2', but training goes on with '0', '1'"):
        classifier.partial_fit(X, y, classes=[0, 2])
    assert classifier.partial_fit(X, y, classes=[1, 0]).score(X, y) > 0.5
    with pytest.raises(FordeError, match="n_estimators is 4"):
        classifier.set_params(n_estimators=4).fit(X, y)
    with pytest.raises(FordeError, match="pass as many as before"):
        regressor.fit(X, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="features"):
        regressor.partial_fit(X[:, :2], y)
