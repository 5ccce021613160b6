"""How good the predictions of a cell are, with the metrics of the library."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forde.metrics.classification import accuracy, brier, ece, nll
from forde.metrics.regression import crps, gaussian_mixture_nll, rmse

Array = NDArray[Any]

LEVEL = 0.95
"""Of the intervals whose coverage and width are measured."""
LEAST_PROBABILITY = 1e-6
"""A forest gives 0 to what then happens; the log of that would decide every mean."""


class Forecast(NamedTuple):
    """A mixture of M Gaussians and a central interval for each row, in units of the target; most peers have M = 1."""

    means: Array
    """[M, N]"""
    variances: Array
    """[M, N]"""
    low: Array
    """[N]"""
    high: Array
    """[N]"""


def classification_scores(probs: Array, y: Array) -> dict[str, float]:
    """Accuracy, NLL, Brier score and ECE of probabilities `[N, C]` for classes `[N]`.

    Probabilities below 10⁻⁶ count as 10⁻⁶, and rows are then divided by their sum.

    >>> round(classification_scores(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0, 1]))["brier"], 6)
    0.25
    """
    raised = np.maximum(probs, LEAST_PROBABILITY)
    p, target = torch.from_numpy(raised / raised.sum(1, keepdims=True)), torch.from_numpy(y).long()
    return {
        "accuracy": accuracy(torch.from_numpy(np.ascontiguousarray(probs)), target),
        "nll": nll(p.log()[None], target),
        "brier": brier(p, target),
        "ece": ece(p, target),
    }


def regression_scores(forecast: Forecast, y: Array, scale: float) -> dict[str, float]:
    """RMSE, NLL, CRPS, coverage and width of the intervals for targets `[N]`.

    All but the coverage are in units of `scale`, the standard deviation of the training targets, so that data sets can
    be averaged. NLL and CRPS are those of the whole mixture.

    >>> same = Forecast(np.zeros((1, 2)), np.ones((1, 2)), np.full(2, -2.0), np.full(2, 2.0))
    >>> {name: round(value, 3) for name, value in regression_scores(same, np.array([0.0, 4.0]), 2.0).items()}
    {'rmse': 1.414, 'nll': 4.226, 'crps': 0.917, 'coverage': 0.5, 'width': 2.0}
    """
    means, target = torch.from_numpy(forecast.means / scale), torch.from_numpy(y / scale)
    variances = torch.from_numpy(forecast.variances / scale**2)
    inside = (forecast.low <= y) & (y <= forecast.high)
    return {
        "rmse": rmse(means, target),
        "nll": gaussian_mixture_nll(means, variances, target),
        "crps": crps(means, variances, target),
        "coverage": float(inside.mean()),
        "width": float((forecast.high - forecast.low).mean() / scale),
    }
