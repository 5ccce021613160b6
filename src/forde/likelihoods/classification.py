"""One class for each sample: softmax and cross-entropy."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.errors import FordeError
from forde.likelihoods.base import Likelihood
from forde.likelihoods.looking import warn_of_softmax
from forde.likelihoods.settings import as_weights, numbers_from_0
from forde.prediction import ClassificationPrediction, Prediction

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


@dataclass(frozen=True)
class OfClasses(Likelihood):
    """Rows that each have a class: what classification of samples, of pixels and of tokens have in common.

    The formulas are for rows: logits `[..., R, C]`, and labels `[R]` or probabilities of classes `[R, C]`.
    """

    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", numbers_from_0("class_weights", self.class_weights))
        smoothing = self.label_smoothing
        if type(smoothing) not in (int, float) or not 0 <= smoothing < 1:
            raise FordeError(f"label_smoothing is {smoothing!r}, but a number from 0 to below 1 was expected.")
        if self.ignore_index is not None and type(self.ignore_index) is not int:
            raise FordeError(f"ignore_index is {self.ignore_index!r}, but a whole number was expected.")

    @property
    def adds_up(self) -> bool:
        # Each batch is divided by the weights, or by the number, of its own labels.
        return self.class_weights is None and self.ignore_index is None

    def mean_loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Logits `[..., R, C]` and targets `[R]` or `[R, C]` → `[...]`."""
        *stacked, rows, classes = output.shape
        flat, copies = output.reshape(-1, classes), output[..., 0, 0].numel()
        soft = y.is_floating_point()
        targets = y.to(output.dtype).repeat(copies, 1) if soft else y.long().repeat(copies)
        weights = None if self.class_weights is None else as_weights(self.class_weights, output)
        ignored = {} if self.ignore_index is None or soft else {"ignore_index": self.ignore_index}
        options: dict[str, Any] = {"weight": weights, "label_smoothing": self.label_smoothing, **ignored}
        if not stacked and not ignored and (soft or weights is None):
            return F.cross_entropy(flat, targets, **options)
        losses = F.cross_entropy(flat, targets, **options, reduction="none").view(*stacked, rows)
        if soft or (weights is None and not ignored):
            return losses.mean(-1)
        size = self.size(y, losses)
        return losses.sum(-1) / torch.where(size > 0, size, torch.ones_like(size))

    def size(self, y: Tensor, like: Tensor) -> Tensor:
        if y.is_floating_point():
            return super().size(y, like)
        counts = self.counts(y)
        if self.class_weights is None:
            return counts.to(like.dtype).sum()
        return (as_weights(self.class_weights, like)[torch.where(counts, y, 0).long()] * counts).sum()

    def counts(self, y: Tensor) -> Tensor:
        """Which labels count."""
        return torch.ones_like(y, dtype=torch.bool) if self.ignore_index is None else y != self.ignore_index

    def at_labels(self, output: Tensor, y: Tensor) -> Tensor:
        """Values of the true class, their mean under soft labels, 0 where a label does not count: `[..., R]`."""
        if y.is_floating_point():
            return (output * y.to(output.dtype)).sum(-1)
        own = y.long() if self.ignore_index is None else torch.where(self.counts(y), y, 0).long()
        found = output.gather(-1, own.expand(output.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        return found if self.ignore_index is None else torch.where(self.counts(y), found, 0)

    def labels(self, y: Tensor) -> Tensor | None:
        if y.is_floating_point():
            return None
        return y.flatten() if self.ignore_index is None else y[self.counts(y)]

    def check_classes(self, y: Tensor) -> None:
        """Refuse labels that are negative."""
        found = self.labels(y)
        if found is not None and found.numel() and int(found.min()) < 0:
            raise FordeError(
                f"label {int(found.min())} is negative; expected labels 0..C-1, so re-number the classes, or pass "
                f"ignore_index={int(found.min())} if it marks what has no label."
            )

    def check_probabilities(self, y: Tensor, axis: int) -> None:
        """Refuse soft labels that are no probabilities."""
        if self.ignore_index is not None:
            raise FordeError(
                f"targets are probabilities of classes, where ignore_index={self.ignore_index} has no meaning; leave "
                "it out, or pass integer labels."
            )
        off = (y.double().sum(axis) - 1).abs() > 1e-2
        if not bool(y.isfinite().all()) or bool((y < 0).any()) or bool(off.any()):
            raise FordeError(
                f"targets {list(y.shape)} of {y.dtype} are taken for probabilities of classes, but some are negative "
                "or do not sum to 1; pass integer labels, or soft labels that sum to 1."
            )

    def check_number(self, classes: int) -> None:
        """Refuse class weights for another number of classes."""
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise FordeError(
                f"there are {len(self.class_weights)} class weights, but the network has {classes} classes; pass one "
                "weight for each class."
            )

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        """Refuse labels beyond the number of classes, axis 1 of the output."""
        found, classes = self.labels(y), output.shape[1]
        if found is not None and found.numel() and int(found.max()) >= classes:
            raise FordeError(
                f"label {int(found.max())} is outside the {classes} classes of the network's output; "
                f"expected labels 0..{classes - 1}, so give the network more outputs or fix the labels."
            )

    def config(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given = {field.name for field in dataclasses.fields(self) if values[field.name] != field.default}
        return {
            "name": self.name,
            **{n: list(v) if isinstance(v, tuple) else v for n, v in values.items() if n in given},
        }


@dataclass(frozen=True)
class Classification(OfClasses):
    """Softmax over C logits `[B, C]`, cross-entropy loss; labels `[B]`, or probabilities of classes `[B, C]` (mixup).

    The loss is that of `torch.nn.CrossEntropyLoss`: with class weights the weighted mean Σ w_y (−log p_y) / Σ w_y over
    the batch, so that weights change how much classes count and not how large the loss is; with probabilities as
    targets it is divided by B. Labels that are ignored do not count, and a batch of nothing else has the loss 0.

    FoRDE differentiates the logit of the true class (or its log-probability); under soft labels the mean of the logits
    by these probabilities. Weights and smoothing are no part of it: they belong to the loss, and a factor would not
    change the direction that members are compared by. Samples that are ignored have the gradient 0 and do not repel.

    Args:
        class_weights: list or tensor `[C]`, numbers ≥ 0.
        label_smoothing: ε: trained on (1 − ε) · target + ε/C.
        ignore_index: the label of samples without one.

    >>> logits, y = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    >>> round(float(Classification().loss(logits, y)), 4)
    0.1269
    >>> Classification(class_weights=torch.tensor([1.0, 3.0])).config()
    {'name': 'classification', 'class_weights': [1.0, 3.0]}
    """

    name: ClassVar[str] = "classification"
    has_log_prob = True
    takes_stacks: ClassVar[bool] = True
    takes_labels: ClassVar[bool] = True

    loss = OfClasses.mean_loss

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        if not self.adds_up:
            raise FordeError(
                "class_weights and ignore_index divide the loss by what a batch holds, so rows have no weights beside "
                "them; put both into the weights of the rows."
            )
        *stacked, rows, classes = output.shape
        copies = output[..., 0, 0].numel()
        soft = y.is_floating_point()
        targets = y.to(output.dtype).repeat(copies, 1) if soft else y.long().repeat(copies)
        losses = F.cross_entropy(
            output.reshape(-1, classes), targets, label_smoothing=self.label_smoothing, reduction="none"
        )
        return losses.view(*stacked, rows)

    scalar = OfClasses.at_labels
    """Logit of the true class, as in the paper's released code."""

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        return self.scalar(output.log_softmax(-1), y)

    def prediction(self, outputs: Tensor) -> Prediction:
        return ClassificationPrediction(outputs)

    def check_targets(self, y: Tensor) -> None:
        if y.ndim == 2 and y.is_floating_point():
            self.check_probabilities(y, 1)
            return
        if y.ndim != 1 or y.dtype not in INTEGERS:
            raise FordeError(
                f"class labels have shape {list(y.shape)} and dtype {y.dtype}, but one integer per sample was "
                "expected; pass labels 0..C-1 as a one-dimensional integer tensor."
            )
        self.check_classes(y)

    def check_output(self, output: Tensor, y: Tensor) -> None:
        if output.ndim != 2 or output.shape[0] != len(y) or output.shape[1] < 2:
            raise FordeError(
                f"the network returned shape {list(output.shape)} for a batch of {len(y)}, but logits of shape "
                f"[{len(y)}, C] with C ≥ 2 classes were expected; end the network with a linear layer of C outputs."
            )
        if y.is_floating_point() and y.shape != output.shape:
            raise FordeError(
                f"the network returned {output.shape[1]} logits for each sample, but the soft labels have shape "
                f"{list(y.shape)}; give one probability for each class."
            )
        self.check_number(output.shape[1])

    def look_at(self, output: Tensor, y: Tensor) -> None:
        warn_of_softmax(output)
