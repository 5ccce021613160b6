"""How good Gaussian-mixture predictions are: p(y) = (1/M) Σ_m N(y; μ_m, σ_m²). In float64.

Means and variances are `[M, N]`, or `[M, N, K]` for K outputs, and y is `[N]` or `[N, K]`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from forde.errors import FordeError


def gaussian_mixture_nll(member_means: Tensor, member_variances: Tensor, y: Tensor) -> float:
    """Mean over samples of −ln (1/M) Σ_m Π_k N(y_k; μ_mk, σ_mk²), by logsumexp: finite however far y is.

    A member's K outputs are independent given the member, so the result is of all K outputs together.

    >>> zero, one = torch.zeros(2, 1), torch.ones(2, 1)
    >>> round(gaussian_mixture_nll(zero, one, torch.zeros(1)), 4)  # ½ ln 2π
    0.9189
    """
    return float(gaussian_mixture_nll_per_sample(member_means, member_variances, y).mean())


def gaussian_mixture_nll_per_sample(member_means: Tensor, member_variances: Tensor, y: Tensor) -> Tensor:
    """−ln (1/M) Σ_m Π_k N(y_k; μ_mk, σ_mk²): `[M, N]`, `[M, N]`, `[N]` → `[N]`, float64.

    >>> gaussian_mixture_nll_per_sample(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(3)).shape
    torch.Size([3])
    """
    mean, variance, target = _checked(member_means, member_variances, y)
    if bool((variance == 0).any()):
        raise FordeError("a variance is 0, where the likelihood is not defined; give the noise a lower bound.")
    log_prob = -0.5 * ((target - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    joint = log_prob.flatten(2).sum(-1) if log_prob.dim() > 2 else log_prob
    return math.log(len(joint)) - joint.logsumexp(0)


def rmse(member_means: Tensor, y: Tensor) -> float:
    """√ mean (μ̄ − y)², μ̄ = (1/M) Σ_m μ_m: `[M, N]`, `[N]` → number.

    >>> rmse(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([4.0, 3.0]))
    2.0
    """
    mean, _, target = _checked(member_means, torch.ones_like(member_means), y)
    return float((mean.mean(0) - target).square().mean().sqrt())


def crps(member_means: Tensor, member_variances: Tensor, y: Tensor) -> float:
    """Continuous ranked probability score of the mixture, E|X − y| − ½ E|X − X'|; smaller is better.

    Both are means of folded normals, E|N(μ, σ²)| = μ (2Φ(μ/σ) − 1) + 2σ φ(μ/σ), over members and over pairs of members.
    Mean over samples and outputs, in units of y; |μ − y| for a single certain member.

    >>> round(crps(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1)), 4)  # (√2 − 1) / √π
    0.2337
    """
    return float(crps_per_sample(member_means, member_variances, y).mean())


def crps_per_sample(member_means: Tensor, member_variances: Tensor, y: Tensor) -> Tensor:
    """The same of each sample and output: `[M, N]`, `[M, N]`, `[N]` → `[N]`, float64.

    >>> crps_per_sample(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(3)).shape
    torch.Size([3])
    """
    mean, variance, target = _checked(member_means, member_variances, y)
    error = folded_normal_mean(mean - target, variance).mean(0)
    # Member by member, so that memory grows with M and not with M².
    spread = torch.stack(
        [folded_normal_mean(mean - m, variance + v).mean(0) for m, v in zip(mean, variance, strict=True)]
    )
    return error - 0.5 * spread.mean(0)


def folded_normal_mean(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, variance), elementwise; |mean| where the variance is 0.

    >>> folded_normal_mean(torch.tensor([-3.0]), torch.tensor([0.0]))
    tensor([3.])
    """
    std = variance.sqrt()
    z = torch.where(std > 0, mean / std.clamp_min(torch.finfo(std.dtype).tiny), torch.zeros_like(mean))
    density = (-0.5 * z.square()).exp() * (2 / math.pi) ** 0.5
    return torch.where(std > 0, mean * torch.erf(z / math.sqrt(2)) + std * density, mean.abs())


def mixture_cdf(member_means: Tensor, member_variances: Tensor, y: Tensor) -> Tensor:
    """F(y) = (1/M) Σ_m Φ((y − μ_m)/σ_m): `[M, N]`, `[M, N]`, `[N]` → `[N]`, float64.

    >>> mixture_cdf(torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1), torch.zeros(1))
    tensor([0.5000], dtype=torch.float64)
    """
    mean, variance, target = _checked(member_means, member_variances, y)
    return _cdf(mean, variance, target)


def mixture_quantile(member_means: Tensor, member_variances: Tensor, level: float) -> Tensor:
    """The y with F(y) = level, by bisection to float64's precision: `[M, N]`, `[M, N]` → `[N]`.

    It lies between the smallest and the largest of the members' own quantiles, where the search starts.

    >>> mixture_quantile(torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1), 0.5).abs() < 1e-12
    tensor([True])
    """
    if not 0 < level < 1:
        raise FordeError(f"level is {level}, but a number between 0 and 1 was expected.")
    mean, variance, _ = _checked(member_means, member_variances, member_means[0])
    own = mean + variance.sqrt() * torch.special.ndtri(torch.tensor(level, dtype=torch.float64, device=mean.device))
    low, high = own.amin(0), own.amax(0)
    # 64 halvings: the bracket shrinks to one step of float64, whatever its width was.
    for _ in range(64):
        middle = (low + high) / 2
        below = _cdf(mean, variance, middle) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def interval_coverage(member_means: Tensor, member_variances: Tensor, y: Tensor, level: float = 0.9) -> float:
    """Share of y inside the mixture's central interval, between its quantiles (1 − level)/2 and (1 + level)/2.

    `level` itself for a calibrated model.

    >>> means, variances = torch.zeros(1, 3), torch.ones(1, 3)
    >>> round(interval_coverage(means, variances, torch.tensor([0.0, 1.6, 1.7]), level=0.9), 4)
    0.6667
    """
    if not 0 < level < 1:
        raise FordeError(f"level is {level}, but a number between 0 and 1 was expected.")
    _, _, target = _checked(member_means, member_variances, y)
    low = mixture_quantile(member_means, member_variances, (1 - level) / 2)
    high = mixture_quantile(member_means, member_variances, (1 + level) / 2)
    return float(((low <= target) & (target <= high)).double().mean())


def _cdf(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    # A certain member's Φ is a step at its mean; the floor on σ keeps 0/0 away.
    z = (y - mean) / variance.sqrt().clamp_min(1e-150)
    return torch.special.ndtr(z).mean(0)


def _checked(member_means: Tensor, member_variances: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if member_means.shape != member_variances.shape or member_means.shape[1:] != y.shape or member_means.dim() < 2:
        raise FordeError(
            f"means have shape {list(member_means.shape)}, variances {list(member_variances.shape)} and y "
            f"{list(y.shape)}; expected [M, N], [M, N] and [N], or each with K outputs at the end."
        )
    variance = member_variances.double()
    if bool((variance < 0).any()):
        raise FordeError("a variance is negative; pass variances σ², not their logarithms.")
    return member_means.double(), variance, y.double()
