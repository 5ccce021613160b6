"""The classification metrics as `torchmetrics.Metric` classes, for training loops that collect those.

Each takes `update(member_outputs [M, B, C], target [B])`, where the outputs are logits or, with `outputs="probs"`,
probabilities; one network's `[B, C]` is an ensemble of one. States are sums in float64, so any split into batches and
processes gives the value of the function of the same name. Needs `pip install torchmetrics`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from forde.errors import FordeError
from forde.evaluation.outputs import OutputKind, member_log_probs
from forde.metrics.calibration import adaptive_error, classwise_gaps
from forde.metrics.classification import bin_index, mixture
from forde.metrics.disagreement import disagreement_per_sample, entropies


class _EnsembleMetric(Metric):
    """A sum `[...]` and a count; children say what is added per batch."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, *, outputs: OutputKind = "logits", shape: tuple[int, ...] = (), **options: Any) -> None:
        super().__init__(**options)
        self.outputs: OutputKind = outputs
        self.add_state("total", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, member_outputs: Tensor, target: Tensor) -> None:
        """Add a batch: member outputs `[M, B, C]` and labels `[B]`."""
        self.total = self.total + self._batch(member_log_probs(member_outputs, self.outputs).double(), target)
        self.count = self.count + len(target)

    @abstractmethod
    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        """What a batch adds to the total: `[M, B, C]`, `[B]` → the shape of the state."""

    def compute(self) -> Any:
        """The metric of everything seen since the last reset."""
        return self.total / self.count


class EnsembleAccuracy(_EnsembleMetric):
    """Share of samples whose label is among the k classes that p̄ finds most probable.

    >>> metric = EnsembleAccuracy()
    >>> metric.update(torch.tensor([[[2.0, 0.0], [2.0, 0.0]]]), torch.tensor([0, 1]))
    >>> float(metric.compute())
    0.5
    """

    higher_is_better = True

    def __init__(self, k: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.k = k

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        if not 1 <= self.k <= log_probs.shape[-1]:
            raise FordeError(
                f"k is {self.k}, but a number between 1 and the {log_probs.shape[-1]} classes was expected."
            )
        top = mixture(log_probs.exp()).topk(self.k, dim=-1).indices
        return (top == target.unsqueeze(-1)).any(-1).double().sum()


class EnsembleNLL(_EnsembleMetric):
    """Mean of −ln p̄(y), finite for any finite logits.

    >>> metric = EnsembleNLL()
    >>> metric.update(torch.zeros(3, 5, 2), torch.zeros(5, dtype=torch.long))
    >>> round(float(metric.compute()), 4)
    0.6931
    """

    higher_is_better = False

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        at_label = log_probs.gather(-1, target.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return (math.log(len(log_probs)) - at_label.logsumexp(0)).sum()


class EnsembleBrier(_EnsembleMetric):
    """Mean squared distance of p̄ from the one-hot label.

    >>> metric = EnsembleBrier(outputs="probs")
    >>> metric.update(torch.tensor([[[0.5, 0.5]]]), torch.tensor([1]))
    >>> round(float(metric.compute()), 4)
    0.5
    """

    higher_is_better = False

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        probs = mixture(log_probs.exp())
        return (probs - torch.nn.functional.one_hot(target, probs.shape[-1])).square().sum()


class EnsembleECE(_EnsembleMetric):
    """Expected calibration error of p̄, equal bins (lo, hi].

    >>> metric = EnsembleECE(outputs="probs")
    >>> metric.update(torch.tensor([[[0.8, 0.2], [0.8, 0.2]]]), torch.tensor([0, 1]))
    >>> round(float(metric.compute()), 4)
    0.3
    """

    higher_is_better = False

    def __init__(self, n_bins: int = 15, **options: Any) -> None:
        super().__init__(shape=(n_bins,), **options)
        self.n_bins = n_bins

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        confidence, label = mixture(log_probs.exp()).max(-1)
        gap = confidence - (label == target).double()
        return torch.zeros_like(self.total).index_add(0, bin_index(confidence, self.n_bins), gap)

    def compute(self) -> Tensor:
        """The metric of everything seen since the last reset."""
        return self.total.abs().sum() / self.count


class EnsembleClasswiseECE(_EnsembleMetric):
    """Mean over classes of the calibration error of p̄_c.

    >>> metric = EnsembleClasswiseECE(n_classes=2, outputs="probs")
    >>> metric.update(torch.tensor([[[0.8, 0.2], [0.8, 0.2]]]), torch.tensor([0, 1]))
    >>> round(float(metric.compute()), 4)
    0.3
    """

    higher_is_better = False

    def __init__(self, n_classes: int, n_bins: int = 15, **options: Any) -> None:
        super().__init__(shape=(n_classes, n_bins), **options)
        self.n_bins = n_bins

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        return classwise_gaps(mixture(log_probs.exp()), target, self.n_bins)

    def compute(self) -> Tensor:
        """The metric of everything seen since the last reset."""
        return self.total.abs().sum() / len(self.total) / self.count


class EnsembleUncertainty(_EnsembleMetric):
    """Mean total, aleatoric and epistemic entropy in nats, as a dictionary.

    >>> metric = EnsembleUncertainty(outputs="probs")
    >>> metric.update(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([0]))
    >>> round(float(metric.compute()["epistemic"]), 4)
    0.6931
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(shape=(3,), **options)

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        total, aleatoric = entropies(log_probs.exp())
        return torch.stack([total.sum(), aleatoric.sum(), (total - aleatoric).clamp_min(0).sum()])

    def compute(self) -> dict[str, Tensor]:
        """The means over everything seen since the last reset."""
        return dict(zip(("total", "aleatoric", "epistemic"), self.total / self.count, strict=True))


class EnsembleDisagreement(_EnsembleMetric):
    """Share of member pairs that predict different classes.

    >>> metric = EnsembleDisagreement()
    >>> metric.update(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([0]))
    >>> float(metric.compute())
    1.0
    """

    def _batch(self, log_probs: Tensor, target: Tensor) -> Tensor:
        return disagreement_per_sample(log_probs).sum()


class EnsembleAdaptiveECE(Metric):
    """Calibration error of p̄ over bins of equal mass; keeps two numbers per sample, because the bins depend on all.

    >>> metric = EnsembleAdaptiveECE(n_bins=2, outputs="probs")
    >>> metric.update(torch.tensor([[[0.6, 0.4], [0.9, 0.1]]]), torch.tensor([0, 0]))
    >>> round(float(metric.compute()), 4)
    0.25
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, n_bins: int = 15, *, outputs: OutputKind = "logits", **options: Any) -> None:
        super().__init__(**options)
        self.n_bins, self.outputs = n_bins, outputs
        self.add_state("confidence", [], dist_reduce_fx="cat")
        self.add_state("correct", [], dist_reduce_fx="cat")

    def update(self, member_outputs: Tensor, target: Tensor) -> None:
        """Add a batch: member outputs `[M, B, C]` and labels `[B]`."""
        confidence, label = mixture(member_log_probs(member_outputs, self.outputs).double().exp()).max(-1)
        self.confidence.append(confidence)
        self.correct.append(label == target)

    def compute(self) -> Tensor:
        """The metric of everything seen since the last reset."""
        confidence, correct = dim_zero_cat(self.confidence), dim_zero_cat(self.correct)
        return confidence.new_tensor(adaptive_error(confidence, correct, self.n_bins))
