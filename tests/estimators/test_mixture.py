"""What a regressor predicts beyond means: intervals, quantiles and draws of the mixture of its members."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import kstest, norm

from forde import FordeError, FordeRegressor
from forde.estimators import Mixture

APART = Mixture(np.array([[-3.0, 0.0], [3.0, 1.0], [3.0, 2.0]]), np.array([[0.1, 1.0], [0.2, 2.0], [0.3, 0.5]]))
"""The first row has two peaks."""


def density(row: int, y: float) -> float:
    return float(np.mean(norm.pdf(y, APART.means[:, row], np.sqrt(APART.variances[:, row]))))


@pytest.fixture(scope="module", params=[(), (1,), (2,)], ids=["y [N]", "y [N, 1]", "y [N, 2]"])
def fitted(request: pytest.FixtureRequest) -> tuple[FordeRegressor, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = (10 * (X[:, 0] + 5 + rng.normal(size=(*request.param, 80)))).T
    options = {"hidden": (8,), "epochs": 5, "batch_size": 40, "random_state": 0}
    return FordeRegressor(4, **options).fit(X, y), X, y


def test_density_and_distribution_function() -> None:
    y = np.array([-2.5, 0.7])
    np.testing.assert_allclose(np.exp(APART.log_density(y)), [density(0, -2.5), density(1, 0.7)])
    expected = [quad(lambda t, row=row: density(row, t), -20, y[row], points=[-3])[0] for row in range(2)]
    np.testing.assert_allclose(APART.cdf(y), expected, rtol=1e-6)
    np.testing.assert_allclose(APART.std**2, [quad_variance(row) for row in range(2)], rtol=1e-6)


def quad_variance(row: int) -> float:
    moment = [quad(lambda t, k=k: t**k * density(row, t), -20, 20, points=[-3, 3])[0] for k in (1, 2)]
    return moment[1] - moment[0] ** 2


def test_an_interval_is_that_of_the_mixture() -> None:
    for confidence in (0.5, 0.95):
        low, high = APART.interval(confidence)
        np.testing.assert_allclose(APART.cdf(high) - APART.cdf(low), confidence)
        np.testing.assert_allclose(APART.cdf(low), (1 - confidence) / 2)
    gaussian = APART.mean[0] + norm.ppf(0.975) * APART.std[0]
    assert APART.interval(0.95)[1][0] < gaussian - 1, "two peaks have shorter tails than a Gaussian of their variance"


def test_quantiles_invert_the_distribution_function() -> None:
    levels = [0.01, 0.2, 0.5, 0.97]
    found = APART.quantiles(levels)
    for row in range(2):
        std = np.sqrt(APART.variances[:, row])
        for level, quantile in zip(levels, found[row], strict=True):

            def above(y: float, row: int = row, std: np.ndarray = std, level: float = level) -> float:
                return float(norm.cdf(y, APART.means[:, row], std).mean()) - level

            assert quantile == pytest.approx(brentq(above, -20, 20, xtol=1e-12), abs=1e-9)
    np.testing.assert_array_equal(APART.quantiles(0.2), found[:, 1])
    np.testing.assert_array_equal(APART.interval(np.float32(0.5))[0], APART.quantiles(0.25))


def test_draws_are_of_the_mixture() -> None:
    draws = APART.sample(4000, random_state=0)
    assert draws.shape == (2, 4000)
    for row in range(2):
        assert kstest(draws[row], lambda y, row=row: np.array([APART.cdf(np.full(2, t))[row] for t in y])).pvalue > 1e-3
    noiseless = Mixture(APART.means, np.zeros_like(APART.variances)).sample(50, random_state=1)
    assert {tuple(draw) for draw in noiseless.T} == {tuple(member) for member in APART.means}, "a member for all rows"
    np.testing.assert_array_equal(APART.sample(3, random_state=5), APART.sample(3, random_state=5))


def test_everything_is_in_units_and_in_the_shape_of_the_targets(
    fitted: tuple[FordeRegressor, np.ndarray, np.ndarray],
) -> None:
    model, X, y = fitted
    mean, std = model.predict(X, return_std=True)
    mixture = model.predict_distribution(X)
    assert mixture.means.shape == (4, *mean.shape)
    np.testing.assert_allclose(mixture.mean, mean)
    np.testing.assert_allclose(mixture.std, std)
    low, high = model.predict_interval(X, confidence=0.8)
    quantiles = model.predict_quantiles(X, [0.1, 0.9])
    np.testing.assert_allclose(quantiles, np.stack([low, high], -1))
    assert 0.6 < ((low <= y) & (y <= high)).mean() < 0.95
    draws = model.sample_y(X, 500)
    assert draws.shape == (*mean.shape, 500)
    assert ((low[..., None] <= draws) & (draws <= high[..., None])).mean() == pytest.approx(0.8, abs=0.02)
    np.testing.assert_array_equal(draws, model.sample_y(X, 500))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(FordeError, match="confidence is 95, but a share between 0 and 1"):
        APART.interval(95)
    for wrong in ([0.5, 1.5], 95, [], ["0.5"], None, [[0.5]]):
        with pytest.raises(FordeError, match=r"quantiles are .*, but shares between 0 and 1"):
            APART.quantiles(wrong)  # type: ignore[arg-type]
    for wrong in (0, -1, 2.5):
        with pytest.raises(FordeError, match=r"n_samples is .*, but a whole number of at least 1"):
            APART.sample(wrong)  # type: ignore[arg-type]
    with pytest.raises(FordeError, match=r"y has shape \[3\], but \[2\]"):
        APART.cdf(np.zeros(3))
