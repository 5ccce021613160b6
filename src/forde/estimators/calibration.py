"""One number that lets stated uncertainty hold on rows that networks have not seen: a noise scale, or a temperature.

Each is the one under which these rows have the smallest negative log-likelihood, as the mixture of the networks that
have not seen them, and a weak prior: ln scale is standard normal, so that rows that are all predicted well do not make
predictions certain. One number in a thousand is taken to be nothing that its row tells, so that a single row far from
all others does not decide. The scale is looked for on a grid of logarithms, and then along the parabola through the
best three.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from forde.likelihoods import Likelihood, Regression
from forde.prediction import ClassificationPrediction, Prediction, RegressionPrediction

GRID = torch.linspace(-4, 4, 17, dtype=torch.float64)
"""Logarithms of the scales that are tried first: from a fiftieth to fifty times as much."""
FINE = torch.linspace(-0.4, 0.4, 9, dtype=torch.float64)
"""And around the best."""


STRAY = 1e-3
"""Share of targets that are drawn from N(0, 1), as standardised targets are, whatever the members say."""


class Calibrated(NamedTuple):
    """What fits best, and how well."""

    scale: Tensor
    """[K] factor of each target's variance, or [] temperature."""
    nll: float
    """Mean negative log-likelihood of the rows under it, of all targets together, and the prior's."""
    of_rows: Tensor
    """[N] that of each row."""
    weights: Tensor
    """[N] how much each counts."""

    def worse_than(self, best: Calibrated) -> tuple[float, float]:
        """By how much its likelihood of the same rows is worse, and the standard error of that difference.

        >>> rows = torch.ones(4), torch.ones(4)
        >>> one, other = (Calibrated(torch.ones(1), x, x * torch.ones(4), torch.ones(4)) for x in (1.0, 1.5))
        >>> other.worse_than(one)
        (0.5, 0.0)
        """
        difference, share = self.of_rows - best.of_rows, self.weights / self.weights.sum()
        scatter = difference - (share * difference).sum()
        return self.nll - best.nll, float((share * scatter).square().sum().sqrt())


def calibrated(
    prediction: Prediction, y: Tensor, weights: Tensor, *, n_members: int | None = None, known_noise: bool = False
) -> Calibrated:
    """The best scale for targets `[N]` or `[N, K]`, where weights `[B, N]` say how much rows count and for whom.

    Args:
        n_members: M of the mixture that the scale is for; the B networks that are judged if left out.
        known_noise: the scale is 1, because somebody knows it.

    >>> prediction = RegressionPrediction(torch.zeros(1, 900), torch.ones(1, 900))
    >>> found = calibrated(prediction, torch.tensor([-2.0, 2.0, 2.0]).repeat(300), torch.ones(1, 900))
    >>> [round(float(s), 1) for s in found.scale]  # the mean square of the errors
    [4.0]
    """
    members, there = _judges(weights)
    n_members = len(weights) if n_members is None else n_members
    if isinstance(prediction, RegressionPrediction):
        means, variances = (
            values.double().reshape(*values.shape[:2], -1).gather(0, members.expand(-1, -1, _targets(values)))
            for values in (prediction.member_means, prediction.member_variances)
        )
        nll_at = _of_noise_scales(means, variances, y.double().reshape(len(y), -1), there, n_members)
    else:
        assert isinstance(prediction, ClassificationPrediction)
        logits = prediction.member_logits.double()
        nll_at = _of_temperatures(
            logits.gather(0, members.expand(-1, -1, logits.shape[-1])), y.long(), there, n_members
        )
    of_row = weights.amax(0).double()
    counting = int((of_row > 0).sum())

    def objective(log_scales: Tensor) -> Tensor:
        return (nll_at(log_scales) * of_row[:, None]).sum(1) / of_row.sum() + log_scales.square() / (2 * counting)

    if known_noise:
        nll = objective(torch.zeros(1, 1, dtype=torch.float64))[0]
        of_rows = nll_at(torch.zeros(1, 1, dtype=torch.float64))[0].sum(1)
        return Calibrated(torch.ones_like(nll), float(nll.sum()), of_rows, of_row)
    scale, nll = _minimised(objective)
    of_rows = nll_at(scale.log()[None])[0].sum(1)
    scale = scale if isinstance(prediction, RegressionPrediction) else scale[0]
    return Calibrated(scale, float(nll.sum()), of_rows, of_row)


def calibrated_for(
    likelihood: Likelihood, prediction: Prediction, y: Tensor, weights: Tensor, n_members: int
) -> Calibrated:
    """`calibrated`, where a regression's noise may be known."""
    known_noise = isinstance(likelihood, Regression)
    return calibrated(prediction, y, weights, n_members=n_members, known_noise=known_noise)


def with_noise_scale(prediction: RegressionPrediction, scale: Tensor) -> RegressionPrediction:
    """The prediction with each target's noise variance multiplied: `[M, N]` or `[M, N, K]`, `[]` or `[K]`."""
    return RegressionPrediction(prediction.member_means, prediction.member_variances * scale)


def with_temperature(prediction: ClassificationPrediction, temperature: float) -> ClassificationPrediction:
    """The prediction with every member's logits divided."""
    return ClassificationPrediction(prediction.member_logits / temperature)


def _targets(values: Tensor) -> int:
    """K of means `[M, N]` or `[M, N, K]`."""
    return values[0, 0].numel()


def _judges(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Members that judge each row, `[k, N, 1]` with k the most that any row has, and which of these count `[k, N]`."""
    k = int((weights > 0).sum(0).max())
    there, members = (weights > 0).to(weights.dtype).topk(k, dim=0)
    return members.unsqueeze(-1), there > 0


def _of_noise_scales(
    means: Tensor, variances: Tensor, y: Tensor, there: Tensor, n_members: int
) -> Callable[[Tensor], Tensor]:
    """Logarithms of scales `[G, K]` → −ln of the mixture's density of each target, `[G, N, K]`."""
    squares, logs = (y - means).square() / variances, variances.log() + math.log(2 * math.pi)
    stray = math.log(STRAY) - 0.5 * (y.square() + math.log(2 * math.pi))

    def nll_at(grid: Tensor) -> Tensor:
        log_scale = grid[:, None, None]
        nll = _of_mixture(-0.5 * (squares * (-log_scale).exp() + logs + log_scale), there, n_members)
        return -torch.logaddexp(math.log1p(-STRAY) - nll, stray)

    return nll_at


def _of_temperatures(logits: Tensor, labels: Tensor, there: Tensor, n_members: int) -> Callable[[Tensor], Tensor]:
    """Logarithms of temperatures `[G, 1]` → −ln of the mixture's probability of each label, `[G, N, 1]`."""
    own = labels.expand(logits.shape[:2]).unsqueeze(-1)

    def nll_at(grid: Tensor) -> Tensor:
        cooled = logits * (-grid[:, None, None]).exp()
        log_prob = cooled.gather(-1, own.expand(*cooled.shape[:-1], 1)) - cooled.logsumexp(-1, keepdim=True)
        return _of_mixture(log_prob, there, n_members)

    return nll_at


def _of_mixture(log_prob: Tensor, there: Tensor, n_members: int) -> Tensor:
    """`[G, k, N, K]` → −ln of what all M members would say, as far as the k that count tell, `[G, N, K]`.

    The mean p̄ of k probabilities scatters more than that of M: E ln p̄ is lower by v (1/k − 1/M) / 2 to second order,
    with v the variance of a member's p / p̄, which is estimated from the k. Without it, the few members that have not
    seen a row would have their noise widened for disagreement that is in the prediction of all.
    """
    there = there.unsqueeze(-1)
    k = there.sum(0)
    log_mean = log_prob.masked_fill(~there, -math.inf).logsumexp(1) - k.log()
    ratio = (log_prob - log_mean.unsqueeze(1)).masked_fill(~there, 0.0).exp()
    variance = (ratio - 1).square().sum(1) / (k - 1).clamp_min(1)
    nll = -log_mean - 0.5 * variance * (1 / k - 1 / n_members)
    return nll.masked_fill(k == 0, 0.0)


def _minimised(objective: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The scales and smallest values `[K]` of an objective of logarithms, `[G, 1]` or `[G, K]` → `[G, K]`."""
    coarse, _ = _lowest(objective, GRID[:, None])
    log_scale, value = _lowest(objective, coarse + FINE[:, None])
    return log_scale.exp(), value


def _lowest(objective: Callable[[Tensor], Tensor], grid: Tensor) -> tuple[Tensor, Tensor]:
    """Where the parabola through the lowest point of a grid and its neighbours is lowest, and the value there."""
    values = objective(grid).nan_to_num(math.inf)
    best = values.argmin(0)
    inner = best.clamp(1, len(grid) - 2)
    left, middle, right = (values.gather(0, (inner + i)[None])[0] for i in (-1, 0, 1))
    curvature = left - 2 * middle + right
    step = torch.where((best == inner) & (curvature > 0), 0.5 * (left - right) / curvature, 0.0)
    point = grid.expand_as(values).gather(0, best[None])[0]
    found = point + step * (grid[1] - grid[0])
    return found, objective(found[None])[0]
