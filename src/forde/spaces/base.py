"""What of two members is compared: the contract of a space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from forde.likelihoods import Likelihood


@dataclass(frozen=True)
class View:
    """What one forward pass leaves for a space and the priors to read, its autograd graph still alive.

    Every tensor has the same number of leading member axes: none for one member, one for stacked members.
    """

    x: Tensor
    """`[B, ...]` or `[M, B, ...]`; requires grad where the space differentiates with respect to it."""
    y: Tensor
    """`[B]`."""
    output: Tensor
    """`[B, C]` or `[M, B, C]`."""
    features: Tensor | None
    """`[B, Q...]` or `[M, B, Q...]` where the method asked for features."""
    parameters: Sequence[Tensor]
    """Trainable parameters, each `[...]` or `[M, ...]`."""
    likelihood: Likelihood
    stacked: bool = False
    share: float = 1.0
    """Part of the batch that these samples are, where several processes hold it together."""

    @property
    def lead(self) -> int:
        """Number of leading member axes, 0 or 1."""
        return int(self.stacked)

    def loss(self) -> Tensor:
        """Mean loss of the batch, or this view's part of it: `[]` or `[M]`."""
        return self.part(self.of_outputs(self.likelihood.loss, takes_stacks=self.likelihood.takes_stacks))

    def of_outputs(self, function: Callable[[Tensor, Tensor], Tensor], *, takes_stacks: bool = False) -> Tensor:
        """`function(output [B, ...], y)` of each member, in float32 or better: `[...]` or `[M, ...]`.

        Args:
            takes_stacks: whether the function also takes all members' outputs at once.
        """
        output = self.output.float() if self.output.itemsize < 4 else self.output
        if self.stacked and not takes_stacks:
            return torch.stack([function(member, self.y) for member in output])
        return function(output, self.y)

    def part(self, mean: Tensor) -> Tensor:
        """What a mean over these samples contributes to the mean over the batch."""
        return mean if self.share == 1 else self.share * mean


@dataclass(frozen=True)
class Projection:
    """Members seen along a few orthonormal directions, and the way back."""

    z: Tensor
    """`[M, S', R]` coordinates."""
    basis: Tensor
    """`[R, S·D]` orthonormal rows, treated as constants."""

    def pull_back(self, cotangent: Tensor, like: Tensor) -> Tensor:
        """Cotangent of the coordinates `[M, 1, R]` → cotangent of the representation `[M, S, D]`."""
        return (cotangent.flatten(1) @ self.basis).view_as(like)


class Space(ABC):
    """Maps a member to its representation `[S, D]`: S places where it is compared, each a vector of D numbers.

    A kernel compares two members place by place and averages over the S places.
    """

    scale: ClassVar[Literal["batch", "data"]] = "batch"
    """Factor of log-density repulsion in mean-loss units: 1/B where the density is over functions on the
    mini-batch, 1/N where it is over weights (the likelihood of all N data, divided by N)."""
    mixes: ClassVar[Literal["representation", "weights"]] = "representation"
    """Where rules that share driving forces between members (SVGD) mix them."""
    needs_input_gradient: ClassVar[bool] = False
    needs_scalar: bool = False
    """Whether `represent` asks the likelihood for its scalar."""
    needs_loss_gradient: bool = False
    """Whether `project` wants the gradient of the loss with respect to the representation."""
    uses_batch: ClassVar[bool] = True
    """False where the representation does not depend on the data (weights)."""
    sample_axis: ClassVar[Literal[1, 2]] = 1
    """Axis of `[M, S, D]` along which the batch lies, sample after sample: 1 where members are compared at each sample,
    2 where the whole batch is one vector."""

    @abstractmethod
    def represent(self, view: View) -> Tensor:
        """Representation with its graph: `[S, D]`, or `[M, S, D]` for a stacked view."""

    def source(self, view: View) -> Tensor:
        """The tensor on the way to the loss that the representation is a reshaped copy of."""
        return view.output

    def project(self, z: Tensor, loss_gradients: Tensor | None) -> Projection | None:
        """Directions to compare along, from all members together; None compares `z [M, S, D]` as it is."""
        return None

    def feature_layer(self, network: nn.Module) -> FeatureLayer | None:
        """Which activation of the network the forward pass has to keep; None for none."""
        return None


@dataclass(frozen=True)
class FeatureLayer:
    """An activation: the output of the submodule `name`, or its input."""

    name: str | None
    """None for the last `nn.Linear` that the forward pass calls."""
    side: Literal["input", "output"]
