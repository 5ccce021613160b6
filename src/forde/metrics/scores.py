"""All metrics of a prediction at once, whatever it is of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.metrics.regression import crps, gaussian_mixture_nll, rmse
from forde.metrics.statistics import score_batches
from forde.prediction import DensePrediction, MultiLabelPrediction, Prediction, RegressionPrediction, as_rows


def score(prediction: Prediction, y: Any, *, ignore_index: int | None = None, n_bins: int = 15) -> dict[str, float]:
    """How good a prediction is: metrics of the mixture of the members, p̄ = (1/M) Σ_m p_m.

    For classes `accuracy`, `nll`, `brier`, `ece` and the rest of `score_batches`: means over samples, over all labelled
    pixels or tokens `[B, ...]` of dense predictions, and over all labels `[B, K]` of multi-label ones (each a choice of
    two classes: its NLL is −ln p̄(y_k)). For regression `nll` (of a sample's targets together), `rmse` and `crps`.

    Args:
        y: targets `[B, ...]`, as in training; integers where they are classes.
        ignore_index: the label of samples or pixels without one.

    >>> from forde import DensePrediction
    >>> prediction = DensePrediction(torch.zeros(2, 1, 3, 4, 4))
    >>> round(score(prediction, torch.zeros(1, 4, 4, dtype=torch.long))["nll"], 4)  # ln 3
    1.0986
    """
    targets = torch.as_tensor(y).cpu()
    if isinstance(prediction, RegressionPrediction):
        return _of_regression(prediction, targets)
    rows = as_rows(prediction)
    if rows is None:
        raise FordeError(
            f"a {type(prediction).__name__} has no metrics, because forde does not know what its outputs mean; name it "
            "with forde.likelihoods.Custom(loss, prediction='classification')."
        )
    logits = prediction.member_logits  # type: ignore[union-attr]
    expected = logits.shape[1:2] + logits.shape[3:] if isinstance(prediction, DensePrediction) else logits.shape[1:-1]
    expected = logits.shape[1:] if isinstance(prediction, MultiLabelPrediction) else expected
    targets = targets.reshape(expected) if targets.numel() == len(targets) == expected.numel() else targets
    if targets.shape != expected:
        raise FordeError(
            f"targets have shape {list(targets.shape)}, but labels of shape {list(expected)} were expected; pass one "
            "for each prediction."
        )
    flat = targets.flatten()
    if flat.is_floating_point() and bool((flat != flat.round()).any()):
        raise FordeError("targets are not whole numbers, but metrics need labels; pass those of unmixed data.")
    return _of_labels(rows.member_logits.cpu(), flat.long(), ignore_index, n_bins)


def _of_labels(logits: Tensor, y: Tensor, ignore_index: int | None, n_bins: int) -> dict[str, float]:
    if ignore_index is not None:
        counts = y != ignore_index
        logits, y = logits[:, counts], y[counts]
    classes = logits.shape[-1]
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
        wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise FordeError(
            f"label {wrong} is outside the {classes} classes of the prediction; pass ignore_index={wrong} if it marks "
            "what has no label."
        )
    return score_batches([(logits, y)], n_bins)


def _of_regression(prediction: RegressionPrediction, y: Tensor) -> dict[str, float]:
    means, variances = prediction.member_means.cpu(), prediction.member_variances.cpu()
    y = y.reshape(means.shape[1:]) if y.numel() == len(y) == means[0].numel() else y
    return {
        "nll": gaussian_mixture_nll(means, variances, y),
        "rmse": rmse(means, y),
        "crps": crps(means, variances, y),
    }
