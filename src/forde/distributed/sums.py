"""A sum over processes that can be traced: one operation for torch's compiler, whatever is inside."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from forde.distributed.mesh import Axis

_axes: list[Axis] = []
"""By the number under which the operation knows them: operations take numbers, not objects."""


@torch.library.custom_op("forde::sum_over_processes", mutates_args=())
def _sum_over_processes(x: Tensor, axis: int) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    _axes[axis].all_reduce(total)
    return total


@_sum_over_processes.register_fake
def _(x: Tensor, axis: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class SharingProcesses:
    """The processes along an axis that share every batch, as `double_backward` knows them.

    >>> SharingProcesses(Axis()).sum(torch.ones(2))
    tensor([1., 1.])
    """

    axis: Axis
    number: int = field(init=False)

    def __post_init__(self) -> None:
        _axes.append(self.axis)
        object.__setattr__(self, "number", len(_axes) - 1)

    @property
    def size(self) -> int:
        """How many they are."""
        return self.axis.size

    @property
    def index(self) -> int:
        """This one among them."""
        return self.axis.index

    def sum(self, tensor: Tensor) -> Tensor:
        """A new tensor, the sum of all processes' tensors; nothing is differentiated through it."""
        total: Tensor = _sum_over_processes(tensor, self.number)
        return total
