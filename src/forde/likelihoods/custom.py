"""The user's own loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from forde.errors import FordeError, unknown_name
from forde.likelihoods.base import Likelihood
from forde.likelihoods.classification import Classification
from forde.likelihoods.looking import are_probabilities, warn_of_broadcasting
from forde.prediction import ClassificationPrediction, Prediction, RawPrediction

NOT_STORED = "function"
"""In a file, in the place of a function that makes predictions."""


class Custom(Likelihood):
    """The user's own loss, for one member.

    Args:
        function: `function(output, y)` of a batch's output `[B, ...]` and targets; returns a scalar or one value per
            sample.
        scalar: `scalar(output, y)` → `[B]`, of which methods that compare input gradients take the gradient. Without
            one it is the logit of the true class, as in classification, where y `[B]` holds integers and the output
            is `[B, C]`; elsewhere such a method is refused.
        prediction: what the outputs `[M, B, ...]` mean: `"classification"`, `"raw"`, or a function that makes a
            prediction of them. Without one it is found in training: classification where y `[B]` holds integers and
            the output is `[B, C]`, else raw outputs.

    >>> absolute = Custom(lambda output, y: (output.squeeze(-1) - y).abs())
    >>> float(absolute.loss(torch.ones(4, 1), torch.zeros(4)))
    1.0
    """

    name: ClassVar[str] = "custom"

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        *,
        scalar: Callable[[Tensor, Tensor], Tensor] | None = None,
        prediction: Literal["classification", "raw"] | Callable[[Tensor], Prediction] | None = None,
    ) -> None:
        if isinstance(prediction, str) and prediction not in ("classification", "raw"):
            raise unknown_name("prediction", prediction, ("classification", "raw"))
        self.guessed = False
        """Whether that outputs are logits was concluded from the labels, and not said."""
        self.function, self._scalar, self._prediction = function, scalar, prediction
        self.has_log_prob = scalar is None  # of classes, as `scalar` then is too

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        value = self.function(output, y)
        if not isinstance(value, Tensor):
            raise FordeError(
                f"your loss returned a {type(value).__name__}, but a tensor was expected: one value, or one per "
                "sample; compute it from the output with torch, without item() or float()."
            )
        if output.requires_grad and not value.requires_grad:
            raise FordeError(
                "your loss does not depend on the output in a differentiable way, so nothing could be trained; remove "
                "detach(), argmax or rounding from it."
            )
        return value.mean()

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        if self._scalar is not None:
            value = self._scalar(output, y)
            if not isinstance(value, Tensor) or value.shape != output.shape[:1]:
                shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise FordeError(
                    f"scalar= returned {shape}, but one value per sample, [{len(output)}], was expected; pick or sum "
                    "the outputs of each sample."
                )
            return value
        _refuse_other_than_classes(output, y)
        return Classification().scalar(output, y)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        _refuse_other_than_classes(output, y)
        return Classification().log_prob(output, y)

    def prediction(self, outputs: Tensor) -> Prediction:
        if callable(self._prediction):
            return self._prediction(outputs)
        classes = self._prediction == "classification" and outputs.ndim == 3 and outputs.shape[-1] > 1
        return ClassificationPrediction(outputs) if classes else RawPrediction(outputs)

    def knowing(self, y: Tensor) -> Custom:
        if self._prediction is not None or not _holds_labels(y):
            return self
        known = self._with_prediction("classification")
        known.guessed = True
        return known

    def restored(self, config: dict[str, Any]) -> Custom:
        """This loss, with the meaning of outputs that was saved with the ensemble where it states none itself."""
        stored = config.get("prediction")
        if self._prediction is not None or stored is None or stored == NOT_STORED:
            return self
        return self._with_prediction(stored)

    def _with_prediction(self, prediction: Literal["classification", "raw"]) -> Custom:
        known = copy.copy(self)
        known._prediction = prediction
        return known

    def without_scalar(self, output: Tensor, y: Tensor) -> str | None:
        if self._scalar is not None:
            return None
        if not _are_classes(output, y):
            return _no_scalar(output, y)
        labels = range(output.shape[1])
        return None if all(int(label) in labels for label in y.aminmax()) else _no_scalar(output, y)

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        reason = self.without_scalar(output, y) if scalar else None
        if reason is not None:
            raise FordeError(reason)

    def look_at(self, output: Tensor, y: Tensor) -> None:
        if self.guessed and output.dim() == 2 and are_probabilities(output):
            raise FordeError(
                "the network's outputs are probabilities, but with labels and an own loss they are taken for logits; "
                "return logits and apply log_softmax in the loss, or say what they mean with "
                "forde.likelihoods.Custom(loss, scalar=..., prediction=...)."
            )
        warn_of_broadcasting(self.function, output, y)

    def config(self) -> dict[str, Any]:
        stated = NOT_STORED if callable(self._prediction) else self._prediction
        return {"name": self.name, **({} if stated is None else {"prediction": stated})}


NO_SCALAR = (
    "so forde does not know of which scalar of your own loss to take input gradients; name one value per sample with "
    "forde.likelihoods.Custom(loss, scalar=lambda output, y: ...), or choose 'deep-ensemble' or 'function-rde'."
)


def _no_scalar(output: Tensor, y: Tensor) -> str:
    return f"the output is {list(output.shape)} and the targets are {list(y.shape)} of {y.dtype}, {NO_SCALAR}"


def _refuse_other_than_classes(output: Tensor, y: Tensor) -> None:
    if not _are_classes(output, y):
        raise FordeError(_no_scalar(output, y))


def _are_classes(output: Tensor, y: Tensor) -> bool:
    """Whether there is one output per class and one label per sample."""
    return _holds_labels(y) and output.ndim == 2 and output.shape[1] > 1


def _holds_labels(y: Tensor) -> bool:
    """Whether targets are one integer per sample."""
    return y.ndim == 1 and not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
