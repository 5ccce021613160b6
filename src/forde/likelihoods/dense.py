"""A class for each pixel or each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from forde.errors import FordeError
from forde.likelihoods.classification import INTEGERS, OfClasses
from forde.likelihoods.looking import warn_of_softmax
from forde.prediction import DensePrediction


@dataclass(frozen=True)
class DenseClassification(OfClasses):
    """Softmax over axis 1 of `[B, C, H, W]` (images) or `[B, C, T]` (sequences); labels `[B, H, W]` or `[B, T]`.

    The loss is that of `torch.nn.CrossEntropyLoss`, a mean over all *pixels* of the batch that have a label (with class
    weights the weighted mean): rates and weight decays of torch carry over, and a sample is worth as much as one pixel
    of it. The sum over pixels would count neighbours that show the same as independent evidence. A batch without any
    label has the loss 0. Targets may be probabilities of classes, in the shape of the output.

    FoRDE differentiates one scalar of each sample: the sum over its labelled pixels of the true class's logit (or
    log-probability), which is that of the sample as a whole, so that members are compared by what in the image moves
    all of its labels. Their mean would do the same, since only directions are compared.

    Args:
        class_weights: list or tensor `[C]`, numbers ≥ 0.
        label_smoothing: ε: trained on (1 − ε) · target + ε/C.
        ignore_index: the label of pixels without one, often 255 or −100.

    >>> import torch
    >>> logits, y = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
    >>> round(float(DenseClassification(ignore_index=255).loss(logits, y)), 4)  # ln 3
    1.0986
    """

    name: ClassVar[str] = "segmentation"
    has_log_prob = True

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        rows = _rows(output)
        return self.mean_loss(rows, _rows(y) if y.is_floating_point() else y.reshape(-1))

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """Sum over a sample's labelled pixels of the true class's logit."""
        values = output.flatten(2).movedim(1, -1)  # [B, P, C]
        if y.is_floating_point():
            return self.at_labels(values, y.flatten(2).movedim(1, -1)).sum(-1)
        return self.at_labels(values, y.flatten(1)).sum(-1)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Sum over a sample's labelled pixels of the true class's log-probability."""
        return self.scalar(output.log_softmax(1), y)

    def probs(self, output: Tensor) -> Tensor:
        return output.softmax(1)

    def prediction(self, outputs: Tensor) -> DensePrediction:
        return DensePrediction(outputs)

    def check_targets(self, y: Tensor) -> None:
        if y.ndim > 2 and y.is_floating_point():
            self.check_probabilities(y, 1)
            return
        if y.ndim < 2 or y.dtype not in INTEGERS:
            raise FordeError(
                f"labels have shape {list(y.shape)} and dtype {y.dtype}, but one integer for each pixel or token was "
                "expected; pass labels 0..C-1 of shape [N, H, W] or [N, T]."
            )
        self.check_classes(y)

    def check_output(self, output: Tensor, y: Tensor) -> None:
        if y.is_floating_point():
            fits, expected = output.shape == y.shape, str(list(y.shape))
        else:
            shape = [str(size) for size in y.shape]
            fits = output.ndim == y.ndim + 1 and (*output.shape[:1], *output.shape[2:]) == tuple(y.shape)
            fits, expected = fits and output.shape[1] > 1, f"[{', '.join([shape[0], 'C', *shape[1:]])}]"
        if not fits:
            last = output.ndim == y.ndim + 1 and output.shape[:-1] == y.shape
            advice = (
                "move the classes to axis 1 with output.movedim(-1, 1)" if last else "resize the output or the labels"
            )
            raise FordeError(
                f"the network returned shape {list(output.shape)} for labels of shape {list(y.shape)}, but logits of "
                f"shape {expected} with C ≥ 2 classes were expected; {advice}."
            )
        self.check_number(output.shape[1])

    def look_at(self, output: Tensor, y: Tensor) -> None:
        warn_of_softmax(output.movedim(1, -1))


def _rows(values: Tensor) -> Tensor:
    """`[B, C, ...]` → `[B·P, C]`."""
    return values.flatten(2).movedim(1, -1).reshape(-1, values.shape[1])
