"""Yes or no: one logit for each sample, or one for each of K labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.errors import FordeError
from forde.likelihoods.base import Likelihood
from forde.likelihoods.looking import warn_of_sigmoid
from forde.likelihoods.settings import as_weights, numbers_from_0
from forde.prediction import ClassificationPrediction, MultiLabelPrediction


def log_prob_of(logits: Tensor, y: Tensor, pos_weight: Tensor | float = 1.0) -> Tensor:
    """w y ln σ(f) + (1 − y) ln σ(−f), elementwise: the log-probability of y for w = 1; finite for any finite f."""
    return pos_weight * y * F.logsigmoid(logits) + (1 - y) * F.logsigmoid(-logits)


@dataclass(frozen=True)
class Binary(Likelihood):
    """A single logit f for each sample, `[B]` or `[B, 1]`: p(y = 1) = σ(f); targets 0 or 1 `[B]` or `[B, 1]`.

    The loss is that of `torch.nn.BCEWithLogitsLoss`, a mean over the batch. Targets may be booleans, integers, or
    floats from 0 to 1 (mixup). The prediction is one of two classes, so every metric of classification holds for it.

    FoRDE differentiates the log-odds of the true class, (2y − 1) f, or the log-probability of y.

    Args:
        pos_weight: by which the loss of samples with y = 1 is multiplied.

    >>> round(float(Binary().loss(torch.tensor([2.0, -2.0]), torch.tensor([1, 0]))), 4)
    0.1269
    >>> Binary().prediction(torch.zeros(3, 5)).probs.shape
    torch.Size([5, 2])
    """

    name: ClassVar[str] = "binary"
    has_log_prob = True
    pos_weight: float = 1.0

    def __post_init__(self) -> None:
        if type(self.pos_weight) not in (int, float) or not 0 < self.pos_weight < math.inf:
            raise FordeError(f"pos_weight is {self.pos_weight!r}, but a positive number was expected.")

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.losses(output, y).mean()

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return -log_prob_of(*_flat(output, y), self.pos_weight)

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """Log-odds of the true class."""
        logits, targets = _flat(output, y)
        return (2 * targets - 1) * logits

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return log_prob_of(*_flat(output, y))

    def probs(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def prediction(self, outputs: Tensor) -> ClassificationPrediction:
        logits = outputs.reshape(outputs.shape[:2])
        return ClassificationPrediction(torch.stack([torch.zeros_like(logits), logits], -1))

    def labels(self, y: Tensor) -> Tensor | None:
        values = y.flatten()
        return values.long() if bool(((values == 0) | (values == 1)).all()) else None

    def check_targets(self, y: Tensor) -> None:
        if y.ndim not in (1, 2) or y.shape[1:].numel() != 1:
            raise FordeError(
                f"targets have shape {list(y.shape)}, but one of 0 or 1 for each sample, [N] or [N, 1], was expected; "
                "use the likelihood 'multi-label' for several labels."
            )
        _check_from_0_to_1(y)

    def check_output(self, output: Tensor, y: Tensor) -> None:
        if list(output.shape) not in ([len(y)], [len(y), 1]):
            raise FordeError(
                f"the network returned shape {list(output.shape)} for a batch of {len(y)}, but a single logit for each "
                f"sample, [{len(y)}] or [{len(y)}, 1], was expected; use the likelihood 'classification' for a logit "
                "of each class."
            )

    def look_at(self, output: Tensor, y: Tensor) -> None:
        warn_of_sigmoid(output)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **({} if self.pos_weight == 1 else {"pos_weight": self.pos_weight})}


@dataclass(frozen=True)
class MultiLabel(Likelihood):
    """K labels of which any number may hold: logits `[B, K]`, p(y_k = 1) = σ(f_k); targets 0 or 1 `[B, K]`.

    Labels are independent given the output, so −log p is the sum over them, and the loss the mean of that over the
    batch: K times `torch.nn.BCEWithLogitsLoss`, which divides by K as well. Targets may be booleans, integers, or
    floats from 0 to 1.

    FoRDE differentiates the sum over labels of the log-odds of what holds, Σ_k (2y_k − 1) f_k, so that a label that is
    absent counts as much as one that is there; or the log-probability of all K.

    Args:
        pos_weight: list or tensor `[K]`, by which the loss of labels that hold is multiplied.

    >>> round(float(MultiLabel().loss(torch.zeros(2, 3), torch.ones(2, 3))), 4)  # 3 ln 2
    2.0794
    """

    name: ClassVar[str] = "multi-label"
    has_log_prob = True
    takes_stacks: ClassVar[bool] = True
    pos_weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.pos_weight is not None:
            object.__setattr__(self, "pos_weight", numbers_from_0("pos_weight", self.pos_weight))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.losses(output, y).mean(-1)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        weight = 1.0 if self.pos_weight is None else as_weights(self.pos_weight, output)
        return -log_prob_of(output, y.to(output.dtype), weight).sum(-1)

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """Sum over labels of the log-odds of what holds."""
        return ((2 * y.to(output.dtype) - 1) * output).sum(-1)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return log_prob_of(output, y.to(output.dtype)).sum(-1)

    def probs(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def prediction(self, outputs: Tensor) -> MultiLabelPrediction:
        return MultiLabelPrediction(outputs)

    def check_targets(self, y: Tensor) -> None:
        if y.ndim != 2:
            raise FordeError(
                f"targets have shape {list(y.shape)}, but a 0 or 1 for each sample and label, [N, K], was expected; "
                "turn lists of labels into rows of 0 and 1."
            )
        _check_from_0_to_1(y)

    def check_output(self, output: Tensor, y: Tensor) -> None:
        if output.shape != y.shape:
            raise FordeError(
                f"the network returned shape {list(output.shape)}, but one logit for each label, {list(y.shape)}, was "
                "expected; change the size of its last layer."
            )
        if self.pos_weight is not None and len(self.pos_weight) != output.shape[1]:
            raise FordeError(
                f"pos_weight has {len(self.pos_weight)} numbers, but there are {output.shape[1]} labels; pass one for "
                "each label."
            )

    def look_at(self, output: Tensor, y: Tensor) -> None:
        warn_of_sigmoid(output)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **({} if self.pos_weight is None else {"pos_weight": list(self.pos_weight)})}


def _flat(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and targets `[B]`."""
    return output.reshape(len(output)), y.reshape(len(y)).to(output.dtype)


def _check_from_0_to_1(y: Tensor) -> None:
    if y.is_complex() or not bool(((y >= 0) & (y <= 1)).all()):
        raise FordeError(
            f"targets of {y.dtype} hold values other than 0 to 1, but 0 (no) or 1 (yes) was expected; re-number the "
            "classes, or use the likelihood 'classification'."
        )
