"""Gaussian-mixture metrics against scipy: densities, distribution functions, quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import forde
from forde.evaluation import crps, gaussian_mixture_nll, interval_coverage, mixture_cdf, mixture_quantile, rmse

M, N = 3, 8


@pytest.fixture
def mixture() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(M, N, generator=generator, dtype=torch.float64)
    variances = torch.rand(M, N, generator=generator, dtype=torch.float64) + 0.05
    return means, variances, torch.randn(N, generator=generator, dtype=torch.float64)


def cdf(means: Tensor, variances: Tensor, n: int, x: float) -> float:
    return float(stats.norm.cdf(x, means[:, n], variances[:, n].sqrt()).mean())


def test_nll_equals_scipys_density(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    means, variances, y = mixture
    density = stats.norm.pdf(y.numpy(), means.numpy(), variances.sqrt().numpy()).mean(0)
    assert gaussian_mixture_nll(means, variances, y) == pytest.approx(-np.log(density).mean(), rel=1e-12)


def test_nll_of_several_outputs_is_joint(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    means, variances, _ = mixture
    means, variances = means.view(M, 4, 2), variances.view(M, 4, 2)
    y = torch.zeros(4, 2, dtype=torch.float64)
    density = stats.norm.pdf(0, means.numpy(), variances.sqrt().numpy()).prod(-1).mean(0)
    assert gaussian_mixture_nll(means, variances, y) == pytest.approx(-np.log(density).mean(), rel=1e-12)


def test_nll_is_finite_far_away_and_at_most_the_members_mean(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    means, variances, y = mixture
    assert gaussian_mixture_nll(torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([1e6])) == pytest.approx(
        5e11, rel=1e-9
    )
    members = [gaussian_mixture_nll(means[i : i + 1], variances[i : i + 1], y) for i in range(M)]
    assert gaussian_mixture_nll(means, variances, y) < sum(members) / M


def test_crps_equals_its_definition(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    """∫ (F(x) − 1[y ≤ x])² dx, by quadrature on both sides of y."""
    means, variances, y = mixture
    expected = []
    for n in range(N):
        at = float(y[n])
        left = integrate.quad(lambda x, n=n: cdf(means, variances, n, x) ** 2, at - 30, at, limit=200, epsabs=1e-10)
        right = integrate.quad(
            lambda x, n=n: (1 - cdf(means, variances, n, x)) ** 2, at, at + 30, limit=200, epsabs=1e-10
        )
        expected.append(left[0] + right[0])
    assert crps(means, variances, y) == pytest.approx(np.mean(expected), abs=1e-8)


def test_crps_of_one_gaussian_and_of_points(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    means, variances, y = mixture
    std = variances[:1].sqrt().numpy()
    z = (y.numpy() - means[:1].numpy()) / std
    closed = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert crps(means[:1], variances[:1], y) == pytest.approx(closed.mean(), rel=1e-12)
    # Certain members: the ensemble form E|X − y| − ½ E|X − X'|.
    points = means.numpy()
    energy = np.abs(points - y.numpy()).mean(0) - 0.5 * np.abs(points[:, None] - points[None]).mean((0, 1))
    assert crps(means, torch.zeros_like(means), y) == pytest.approx(energy.mean(), rel=1e-12)


def test_quantiles_invert_the_distribution_function(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    means, variances, y = mixture
    expected = [cdf(means, variances, n, float(y[n])) for n in range(N)]
    torch.testing.assert_close(mixture_cdf(means, variances, y), torch.tensor(expected, dtype=torch.float64))
    for level in (1e-6, 0.05, 0.5, 0.95):
        found = mixture_quantile(means, variances, level)
        assert mixture_cdf(means, variances, found).numpy() == pytest.approx(level, rel=1e-9)
    one = mixture_quantile(means[:1], variances[:1], 0.975)
    np.testing.assert_allclose(one, stats.norm.ppf(0.975, means[0], variances[0].sqrt()), rtol=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_coverage_of_the_mixtures_own_draws_is_the_level(level: float) -> None:
    generator = torch.Generator().manual_seed(1)
    n = 20_000
    means = torch.tensor([[-2.0], [0.0], [3.0]], dtype=torch.float64).expand(3, n)
    variances = torch.tensor([[0.3], [1.0], [2.0]], dtype=torch.float64).expand(3, n)
    member = torch.randint(3, (1, n), generator=generator)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    y = means.gather(0, member)[0] + variances.gather(0, member)[0].sqrt() * noise
    error = math.sqrt(level * (1 - level) / n)
    assert interval_coverage(means, variances, y, level) == pytest.approx(level, abs=4 * error)


def test_rmse_is_scikit_learns(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    from sklearn.metrics import root_mean_squared_error

    means, _, y = mixture
    assert rmse(means, y) == pytest.approx(root_mean_squared_error(y, means.mean(0)), rel=1e-12)


def test_bad_input_is_explained() -> None:
    means, variances, y = torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(3)
    with pytest.raises(forde.FordeError, match="expected \\[M, N\\]"):
        crps(means, variances, y[:2])
    with pytest.raises(forde.FordeError, match="negative"):
        crps(means, -variances, y)
    with pytest.raises(forde.FordeError, match="variance is 0"):
        gaussian_mixture_nll(means, 0 * variances, y)
    with pytest.raises(forde.FordeError, match="between 0 and 1"):
        interval_coverage(means, variances, y, level=1.5)
    with pytest.raises(forde.FordeError, match="between 0 and 1"):
        mixture_quantile(means, variances, 0)
