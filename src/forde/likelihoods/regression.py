"""Regression: Gaussian noise around the network's output."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.errors import FordeError
from forde.likelihoods.base import Likelihood
from forde.prediction import RegressionPrediction

VARIANCE_FLOOR = 1e-6
"""Added to every learned variance, in squared units of the targets."""


def _of_a_sample(y: Tensor) -> tuple[int, ...]:
    """Axes, from the end, of what a sample has: those of targets `[B, ...]`, one for targets `[B]`."""
    return tuple(range(-max(y.ndim - 1, 1), 0))


class _Regression(Likelihood):
    """Targets of any shape `[B, ...]`: independent given the output, so that −log p is the sum over a sample's targets.

    The scalar that FoRDE differentiates is the predicted mean, summed over a sample's targets.
    """

    takes_stacks: ClassVar[bool] = True
    outputs_per_target: ClassVar[int] = 1

    @abstractmethod
    def mean_and_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """What the output says of each target: `[..., B, K·outputs_per_target]` → two of `[..., B, K]`."""

    def output_shape(self, y: Tensor) -> list[int]:
        """The shape that the network's output should have for these targets `[B, ...]`."""
        return list(y.shape) if y.ndim > 1 else [len(y), 1]

    def _with_axis(self, output: Tensor, y: Tensor) -> Tensor:
        """Outputs with an axis of targets, `[..., B, 1]`, where those of a network for targets `[B]` are `[..., B]`."""
        has_it = output.ndim > 1 and output.shape[-2:] == (len(y), 1)
        return output if has_it or y.ndim > 1 or self.outputs_per_target > 1 else output.unsqueeze(-1)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.losses(output, y).mean(-1)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        mean, variance = self.mean_and_variance(self._with_axis(output, y))
        targets = (y if y.ndim > 1 else y.unsqueeze(-1)).to(mean.dtype)
        nll = 0.5 * ((targets - mean) ** 2 / variance + variance.log() + math.log(2 * math.pi))
        return nll.sum(_of_a_sample(y))

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        """The predicted mean itself (summed where a sample has several targets)."""
        return self.mean_and_variance(self._with_axis(output, y))[0].sum(_of_a_sample(y))

    def probs(self, output: Tensor) -> Tensor:
        raise FordeError("the outputs of a regression are no probabilities; compare them as they are, of='logits'.")

    def prediction(self, outputs: Tensor) -> RegressionPrediction:
        mean, variance = self.mean_and_variance(outputs)
        if mean.ndim == 3 and mean.shape[-1] == 1:
            mean, variance = mean.squeeze(-1), variance.squeeze(-1)
        return RegressionPrediction(mean, variance)

    def check_targets(self, y: Tensor) -> None:
        if y.ndim == 0 or not y.is_floating_point():
            raise FordeError(
                f"regression targets have shape {list(y.shape)} and dtype {y.dtype}, but floats of shape [N] or "
                "[N, ...] were expected; convert them with y.float()."
            )
        if not bool(y.isfinite().all()):
            raise FordeError("the targets hold NaN or infinite values; remove those rows or fill in the values.")

    def check_output(self, output: Tensor, y: Tensor) -> None:
        expected = self.output_shape(y)
        if list(output.shape) != expected and (self.outputs_per_target > 1 or output.shape != y.shape):
            raise FordeError(
                f"the network returned shape {list(output.shape)}, but {expected} was expected for {self.name}; "
                "change the size of its last layer."
            )


@dataclass(frozen=True)
class Regression(_Regression):
    """Gaussian noise of known standard deviation: −log p = (y−f)²/(2σ²) + ln σ + ½ ln 2π per target.

    >>> round(float(Regression(noise=1.0).loss(torch.zeros(2, 1), torch.zeros(2))), 4)
    0.9189
    """

    name: ClassVar[str] = "regression"
    noise: float = 1.0

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise FordeError(f"noise is {self.noise}, but a positive standard deviation was expected.")

    def mean_and_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        return output, torch.full_like(output, self.noise**2)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class LearnedNoiseRegression(_Regression):
    """Mean and variance from the network: K means, then K raw variances σ² = softplus(raw) + 1e-6.

    Args:
        axis: where the output has both, counted from the end: −1 for `[B, K]` and sequences `[B, T, K]` (outputs
            `[B, T, 2K]`), −3 for images `[B, K, H, W]` (outputs `[B, 2K, H, W]`).

    >>> LearnedNoiseRegression().mean_and_variance(torch.zeros(3, 2))[1].shape
    torch.Size([3, 1])
    >>> LearnedNoiseRegression(axis=-3).mean_and_variance(torch.zeros(3, 2, 8, 8))[0].shape
    torch.Size([3, 1, 8, 8])
    """

    name: ClassVar[str] = "learned-noise-regression"
    outputs_per_target: ClassVar[int] = 2
    axis: int = -1

    def __post_init__(self) -> None:
        if type(self.axis) is not int or self.axis >= 0:
            raise FordeError(
                f"axis is {self.axis!r}, but a negative whole number, counted from the end, was expected; use -1 for "
                "[B, K] and -3 for the channels of images."
            )

    def output_shape(self, y: Tensor) -> list[int]:
        shape = super().output_shape(y)
        if len(shape) + self.axis < 1:
            raise FordeError(
                f"axis={self.axis} is not an axis of a sample of targets {list(y.shape)}; use one between "
                f"-1 and {1 - len(shape)}, or give the targets an axis of channels."
            )
        shape[self.axis] *= 2
        return shape

    def mean_and_variance(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = output.chunk(2, dim=self.axis)
        return mean, F.softplus(raw) + VARIANCE_FLOOR

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **({} if self.axis == -1 else {"axis": self.axis})}
