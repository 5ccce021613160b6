"""Regression of several targets is that of each by itself, where networks share nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn

from forde import FordeRegressor

QUICK: dict[str, Any] = {
    "n_estimators": 3, "epochs": 20, "batch_size": 30, "method": "deep-ensemble", "calibration": None, "lr": 0.05,
    "random_state": 0,
}  # fmt: skip


def from_zero(n_inputs: int, n_outputs: int) -> nn.Module:
    """A linear model that starts at 0, so that outputs neither share weights nor depend on each other's start."""
    layer = nn.Linear(n_inputs, n_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def rows(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, np.column_stack([X[:, 0] + 0.3 * rng.normal(size=n), 500 + 1000 * X[:, 1] + 100 * rng.normal(size=n)])


@pytest.mark.parametrize("weighted", [False, True])
def test_each_target_is_fitted_as_if_alone(weighted: bool) -> None:
    X, y = rows()
    weights = np.random.default_rng(1).uniform(0, 2, len(X)) if weighted else None
    both = FordeRegressor(**QUICK, network=from_zero).fit(X, y, weights)
    for k in range(2):
        alone = FordeRegressor(**QUICK, network=from_zero).fit(X, y[:, k], weights)
        close = {"rtol": 1e-3, "atol": 1e-3 * y[:, k].std()}  # training is in float32
        np.testing.assert_allclose(both.predict(X)[:, k], alone.predict(X), **close)
        for of_both, of_one in zip(both.predict_interval(X), alone.predict_interval(X), strict=True):
            np.testing.assert_allclose(of_both[:, k], of_one, **close)
        np.testing.assert_allclose(
            both.predict_uncertainty(X).aleatoric[:, k], alone.predict_uncertainty(X).aleatoric, rtol=1e-2
        )
        np.testing.assert_allclose(both.feature_importances(X)[k], alone.feature_importances(X), **close)


def test_quantiles_of_each_target_invert_its_distribution_function() -> None:
    X, y = rows(60)
    model = FordeRegressor(**{**QUICK, "calibration": "out-of-fold", "n_estimators": 5}, hidden=(8,)).fit(X, y)
    quantiles = model.predict_quantiles(X[:4], [0.1, 0.7])
    members = model.ensemble_.predict(model.input_scaler_.transform(X[:4]))
    means = model.target_mean_ + model.target_scale_ * members.member_means.numpy()
    stds = model.target_scale_ * np.sqrt(model.noise_scale_ * members.member_variances.numpy())
    for row in range(4):
        for k in range(2):
            for place, level in enumerate([0.1, 0.7]):

                def above(t: float, row: int = row, k: int = k, level: float = level) -> float:
                    return float(norm.cdf((t - means[:, row, k]) / stds[:, row, k]).mean()) - level

                expected = brentq(above, -1e4, 1e4, xtol=1e-10)
                assert quantiles[row, k, place] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_a_frame_of_targets() -> None:
    X, y = rows(60)
    frame = pd.DataFrame(y, columns=["small", "large"])
    model = FordeRegressor(**QUICK).fit(pd.DataFrame(X, columns=list("abc")), frame)
    expected = FordeRegressor(**QUICK).fit(X, y).predict(X)
    np.testing.assert_allclose(model.predict(pd.DataFrame(X, columns=list("abc"))), expected, rtol=1e-8)
    assert model.sample_y(pd.DataFrame(X, columns=list("abc")), 7).shape == (60, 2, 7)
