"""What the phases of a step hand to each other, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from torch import Tensor

from forde.arguments import Input

Precision = Literal["float32", "bf16"]
Memory = Literal["speed", "balanced", "low"]
"""Which forward passes are made again after the exchange, instead of being kept: none, half of them, all."""


Inputs = Input | list[Input]
"""Of one batch for all members, `[B, ...]`, or of one for each."""
Targets = Tensor | list[Tensor]
"""`[B, ...]`, or one for each member."""
Elsewhere = Callable[[], tuple[Input, Tensor]]
"""Inputs `[B', ...]` that members are compared at instead of the batch, and their labels."""


class Moment(TypedDict, total=False):
    """Where in a training a step is made."""

    step: int
    """Counts from the start of training; decides with `repulsion_every`. 0 if left out."""
    epoch: int
    """Argument of `repulsion_weight`. 0 if left out."""
    data_size: int | None
    """N; the batch size if left out."""
    repel_on: Elsewhere | None
    """Gives other data `(x', y')` to compare members at; asked where they repel in this step."""


@dataclass(frozen=True)
class Batch:
    """What one step sees of the data.

    >>> import torch
    >>> Batch(torch.zeros(8, 4), torch.zeros(8), part=2).share
    1.0
    """

    x: Input
    """`[B, ...]`."""
    y: Tensor
    """`[B, ...]`."""
    part: int | tuple[Input, Tensor] | None = None
    """The samples that members are compared at, where not all: the first so many, or `(x, y)` of their own."""
    repel_on: tuple[Input, Tensor] | None = None
    """Other data `(x', y')` that members are compared at, instead of the batch."""
    share: float = 1.0
    """Part of the whole batch that these samples are, where several processes hold it together."""
    counts: float = 1.0
    """By which their targets count more than those of the whole batch, where its loss is divided by what they count."""

    @property
    def one(self) -> Tensor:
        """The inputs, for engines that take one tensor only."""
        assert isinstance(self.x, Tensor)
        return self.x


Batches = Batch | Sequence[Batch]
"""One batch for all members, or one for each."""


@dataclass(frozen=True)
class Forward:
    """What phase 1 hands to the exchange; all detached."""

    losses: Tensor
    """`[M]` mean loss of the batch, without priors."""
    z: Tensor | None
    """`[M, S, D]` representations, where members interact in this step."""
    loss_gradients: Tensor | None
    """`[M, S, D]` gradient of the loss with respect to z, where the space or rule asks for it."""


@dataclass(frozen=True)
class StepReport:
    """What a step has to say."""

    losses: Tensor
    """`[M]` mean loss of the batch, without priors, before the update."""
    repulsion: Tensor
    """`[M]` R_i, scaled and weighted as it enters the objective; 0 where members did not interact."""
    bandwidth: Tensor | None
    """`[]` mean bandwidth of the kernel; None where there is none."""
    z: Tensor | None
    """`[M, S, D]` representations that were compared."""


@dataclass(frozen=True)
class Graph:
    """One unit's forward pass with its autograd graph alive; m is the number of its members."""

    losses: Tensor
    """`[m]` mean loss of the batch."""
    objective: Tensor
    """`[m]` loss and those priors that are functions of outputs or features."""
    z: Tensor | None
    """`[m, S, D]` where members interact."""
    loss_gradient: Tensor | None
    """∂loss/∂z, detached, in the shape of z, where the space or rule asks for it."""
