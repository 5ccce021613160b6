"""What all likelihoods have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.prediction import Prediction, RawPrediction, RegressionPrediction


class Likelihood(ABC):
    """A loss, the scalar whose input gradient members are compared by, and the meaning of the output."""

    name: ClassVar[str]
    has_log_prob: bool = False
    """Whether `log_prob` is defined: targets are discrete, so that it is a probability."""
    takes_stacks: ClassVar[bool] = False
    """Whether `loss`, `scalar` and `log_prob` also take outputs `[M, B, C]` of stacked members, for speed. Otherwise
    they are called for one member after another."""
    takes_labels: ClassVar[bool] = False
    """Whether targets are class labels 0 … C−1 (or their probabilities) and outputs their logits `[B, C]`."""
    carries_weights: ClassVar[bool] = False
    """Whether targets bring the weights of their rows, which `unpack` takes apart."""

    @property
    def adds_up(self) -> bool:
        """Whether the loss of a batch is the mean of its samples' losses, so that processes may each take a part."""
        return True

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the batch: `[B, ...]`, `[B, ...]` → `[]`."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample, whose mean is `loss` where samples are not weighted: `[B, ...]`, `[B, ...]` → `[B]`."""
        raise FordeError(
            f"{type(self).__name__} has no loss for each sample, so rows cannot be weighted; leave the weights out."
        )

    def size(self, y: Tensor, like: Tensor) -> Tensor:
        """How much targets `[B, ...]` count: what the loss of a batch is divided by, or in proportion to it, `[]`.

        Args:
            like: a tensor of the type and on the device that it shall have.
        """
        return torch.as_tensor(len(y), dtype=like.dtype, device=like.device)

    @abstractmethod
    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """The scalar of each sample that input gradients are taken of: `[B, ...]` → `[B]`."""

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Log-probability of each sample's targets: `[B, ...]`, `[B, ...]` → `[B]`."""
        raise FordeError("output='log_prob' needs class probabilities; use output='logit' for regression.")

    def probs(self, output: Tensor) -> Tensor:
        """Probabilities that an output states, in its shape: a softmax over the last axis, unless overridden."""
        return output.softmax(-1)

    @abstractmethod
    def prediction(self, outputs: Tensor) -> Prediction:
        """`[M, B, ...]` → prediction of the ensemble."""

    def most_probable(self, outputs: Tensor) -> Tensor:
        """Targets that the mean of the members' predictions makes most probable: `[M, B, ...]` → `[B, ...]`."""
        prediction = self.prediction(outputs)
        if isinstance(prediction, RawPrediction):
            raise FordeError(
                f"outputs under {type(self).__name__} mean nothing to forde, so data cannot be labelled by the "
                "members' mean prediction; say what they mean with forde.likelihoods.Custom(loss, prediction=...), or "
                "compare members by what needs no labels ('function-rde')."
            )
        return prediction.mean if isinstance(prediction, RegressionPrediction) else prediction.labels

    def unpack(self, y: Tensor, members: slice) -> tuple[Likelihood, Tensor, Tensor]:
        """What m members see of targets: a likelihood, its targets `[B, ...]`, and weights `[m, B]` of the rows."""
        raise NotImplementedError

    def knowing(self, y: Tensor) -> Likelihood:
        """The likelihood with what the first targets `[B, ...]` of a training tell about it."""
        return self

    def restored(self, config: dict[str, Any]) -> Likelihood:
        """The likelihood with what its `config()` noted, where the code alone does not tell it."""
        return self

    def labels(self, y: Tensor) -> Tensor | None:
        """Class labels in targets, `[L]`, without those that do not count; None where targets are no labels."""
        return y if self.takes_labels else None

    def without_scalar(self, output: Tensor, y: Tensor) -> str | None:
        """Why `scalar` has no meaning for such an output and targets, in a sentence; None where it has one."""
        return None

    def check_targets(self, y: Tensor) -> None:
        """Refuse targets that no network could be trained on."""

    def check_output(self, output: Tensor, y: Tensor) -> None:
        """Refuse an output `[B, ...]` whose shape does not fit the targets `[B, ...]`."""

    def check_labels(self, output: Tensor, y: Tensor, *, scalar: bool = False) -> None:
        """Refuse targets that an output of this shape has no place for; looks at values, so a GPU has to finish.

        Args:
            scalar: whether `scalar` will be asked for; then also where it has no meaning.
        """

    def look_at(self, output: Tensor, y: Tensor) -> None:
        """Warn of a training's first output `[B, ...]`, detached, where it is probably not what it should be."""

    def config(self) -> dict[str, Any]:
        """JSON-ready description, read back by `likelihood_from_config`."""
        return {"name": self.name}
