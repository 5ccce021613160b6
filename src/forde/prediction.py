"""What an ensemble says about new inputs, with its uncertainty split into two sources.

Classification (Depeweg et al. 2018), in nats:

    total      H[p̄]              entropy of the averaged probabilities p̄ = (1/M) Σ_m p_m
    aleatoric  (1/M) Σ_m H[p_m]   what every member is unsure of: noise in the data
    epistemic  total − aleatoric  mutual information: what the members disagree about

Regression, as variances of the mixture of the members' Gaussians:

    total      (1/M) Σ_m σ_m² + (1/M) Σ_m (μ_m − μ̄)²  =  aleatoric + epistemic
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def entropy(probs: Tensor) -> Tensor:
    """Shannon entropy in nats over the last axis, with 0·ln 0 = 0.

    >>> round(float(entropy(torch.tensor([0.5, 0.5, 0.0]))), 4)
    0.6931
    """
    return torch.special.entr(probs).sum(-1)


def _summary(prediction: Prediction) -> str:
    """How many members said what about how many inputs, and how unsure they are on average; no long tensors."""
    outputs = next(iter(vars(prediction).values()))
    what = "mean" if hasattr(prediction, "mean") else "probs"
    told = [f"members={len(outputs)}", f"{what}={list(getattr(prediction, what).shape)}"]
    for name in ("total", "aleatoric", "epistemic"):
        if outputs.numel() and hasattr(prediction, name):
            told.append(f"mean {name}={float(getattr(prediction, name).double().mean()):.3g}")
    return f"{type(prediction).__name__}({', '.join(told)})"


@dataclass(frozen=True, repr=False)
class ClassificationPrediction:
    """Averaged and per-member class probabilities of M members on B inputs.

    >>> ClassificationPrediction(torch.tensor([[[0.0, 0.0]], [[9.0, 0.0]]]))
    ClassificationPrediction(members=2, probs=[1, 2], mean total=0.562, mean aleatoric=0.347, mean epistemic=0.215)
    """

    member_logits: Tensor
    """[M, B, C] raw outputs; kept because log-probabilities from them stay finite where probabilities round to 0."""

    __repr__ = _summary

    @property
    def member_probs(self) -> Tensor:
        """[M, B, C] softmax of each member."""
        return self.member_logits.softmax(-1)

    @property
    def probs(self) -> Tensor:
        """[B, C] mean of the members' probabilities (not of their logits)."""
        return self.member_probs.mean(0)

    @property
    def log_probs(self) -> Tensor:
        """[B, C] ln p̄ by logsumexp, finite for any finite logits."""
        members = self.member_logits.log_softmax(-1)
        return members.logsumexp(0) - math.log(members.shape[0])

    @property
    def labels(self) -> Tensor:
        """[B] most probable class."""
        return self.probs.argmax(-1)

    @property
    def total(self) -> Tensor:
        """[B] entropy of the averaged probabilities, in nats."""
        return entropy(self.probs)

    @property
    def aleatoric(self) -> Tensor:
        """[B] mean entropy of the members, in nats."""
        return entropy(self.member_probs).mean(0)

    @property
    def epistemic(self) -> Tensor:
        """[B] mutual information between prediction and member, total − aleatoric ≥ 0, in nats."""
        return (self.total - self.aleatoric).clamp_min(0)


@dataclass(frozen=True, repr=False)
class DensePrediction:
    """Class probabilities of M members for each pixel or token of B inputs; `...` is `H, W` or `T`."""

    member_logits: Tensor
    """[M, B, C, ...] raw outputs."""

    __repr__ = _summary

    @property
    def per_pixel(self) -> ClassificationPrediction:
        """The same with the classes on the last axis, [M, B, ..., C]."""
        return ClassificationPrediction(self.member_logits.movedim(2, -1))

    @property
    def member_probs(self) -> Tensor:
        """[M, B, C, ...] softmax of each member."""
        return self.member_logits.softmax(2)

    @property
    def probs(self) -> Tensor:
        """[B, C, ...] mean of the members' probabilities."""
        return self.member_probs.mean(0)

    @property
    def log_probs(self) -> Tensor:
        """[B, C, ...] ln p̄ by logsumexp, finite for any finite logits."""
        return self.per_pixel.log_probs.movedim(-1, 1)

    @property
    def labels(self) -> Tensor:
        """[B, ...] most probable class."""
        return self.probs.argmax(1)

    @property
    def total(self) -> Tensor:
        """[B, ...] entropy of the averaged probabilities, in nats."""
        return self.per_pixel.total

    @property
    def aleatoric(self) -> Tensor:
        """[B, ...] mean entropy of the members, in nats."""
        return self.per_pixel.aleatoric

    @property
    def epistemic(self) -> Tensor:
        """[B, ...] mutual information, total − aleatoric ≥ 0, in nats."""
        return self.per_pixel.epistemic


@dataclass(frozen=True, repr=False)
class MultiLabelPrediction:
    """Probabilities of M members that each of K labels holds, on B inputs."""

    member_logits: Tensor
    """[M, B, K] raw outputs."""

    __repr__ = _summary

    @property
    def per_label(self) -> ClassificationPrediction:
        """Each label as a choice of two classes, no and yes: [M, B, K, 2]."""
        return ClassificationPrediction(torch.stack([torch.zeros_like(self.member_logits), self.member_logits], -1))

    @property
    def member_probs(self) -> Tensor:
        """[M, B, K] sigmoid of each member."""
        return self.member_logits.sigmoid()

    @property
    def probs(self) -> Tensor:
        """[B, K] mean of the members' probabilities that the label holds."""
        return self.member_probs.mean(0)

    @property
    def labels(self) -> Tensor:
        """[B, K] whether the label is more probable than not; integers 0 and 1."""
        return (self.probs > 0.5).long()

    @property
    def total(self) -> Tensor:
        """[B, K] entropy of the averaged probability, in nats, at most ln 2."""
        return self.per_label.total

    @property
    def aleatoric(self) -> Tensor:
        """[B, K] mean entropy of the members, in nats."""
        return self.per_label.aleatoric

    @property
    def epistemic(self) -> Tensor:
        """[B, K] mutual information, total − aleatoric ≥ 0, in nats."""
        return self.per_label.epistemic


@dataclass(frozen=True, repr=False)
class RegressionPrediction:
    """Mixture of M Gaussians on B inputs; K outputs per input (or any shape), the K axis dropped where K = 1."""

    member_means: Tensor
    """[M, B], [M, B, K] or [M, B, ...]."""
    member_variances: Tensor
    """[M, B] or [M, B, K] noise variance that each member states."""

    __repr__ = _summary

    @property
    def mean(self) -> Tensor:
        """[B] or [B, K] mean of the mixture."""
        return self.member_means.mean(0)

    @property
    def std(self) -> Tensor:
        """[B] or [B, K] standard deviation of the mixture: √(aleatoric + epistemic)."""
        return self.total.sqrt()

    @property
    def total(self) -> Tensor:
        """[B] or [B, K] variance of the mixture."""
        return self.aleatoric + self.epistemic

    @property
    def aleatoric(self) -> Tensor:
        """[B] or [B, K] mean of the members' noise variances."""
        return self.member_variances.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """[B] or [B, K] variance of the members' means (population variance: 0 for one member)."""
        return self.member_means.var(0, correction=0)

    def rescaled(self, mean: Any, scale: Any) -> RegressionPrediction:
        """The prediction of mean + scale · y in float64, for numbers or one of each output `[K]`: σ² becomes scale² σ².

        In float64, because a mean that is large beside the scale would leave no digits of float32 for the prediction.

        >>> prediction = RegressionPrediction(torch.ones(2, 3), torch.ones(2, 3)).rescaled(10, 2)
        >>> float(prediction.mean[0]), float(prediction.std[0])
        (12.0, 2.0)
        """
        centre, factor = (torch.as_tensor(value, dtype=torch.float64) for value in (mean, scale))
        return RegressionPrediction(
            centre + factor * self.member_means.double(), factor.square() * self.member_variances.double()
        )


@dataclass(frozen=True, repr=False)
class RawPrediction:
    """What members said under the user's own loss, where forde cannot know what the outputs mean."""

    member_outputs: Tensor
    """[M, B, ...]."""

    __repr__ = _summary

    @property
    def mean(self) -> Tensor:
        """[B, ...] mean over members."""
        return self.member_outputs.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """[B, ...] variance over members."""
        return self.member_outputs.var(0, correction=0)


Prediction = ClassificationPrediction | DensePrediction | MultiLabelPrediction | RegressionPrediction | RawPrediction
"""What `Ensemble.predict` returns, by the likelihood."""


def as_rows(prediction: Prediction) -> ClassificationPrediction | None:
    """Every choice of a class in a row of its own, `[M, R, C]`: samples, pixels or labels; None where there are none.

    >>> as_rows(DensePrediction(torch.zeros(2, 5, 3, 4, 4))).member_logits.shape
    torch.Size([2, 80, 3])
    """
    if isinstance(prediction, DensePrediction):
        prediction = prediction.per_pixel
    if isinstance(prediction, MultiLabelPrediction):
        prediction = prediction.per_label
    if not isinstance(prediction, ClassificationPrediction):
        return None
    return ClassificationPrediction(prediction.member_logits.flatten(1, -2))
