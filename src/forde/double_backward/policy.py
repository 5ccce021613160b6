"""Which of torch's operations get a derivative of ours, in one mode and by one policy per run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forde.distributed.mesh import Axis
from forde.double_backward import batch_norm, batch_norm_for_compiler, stacked
from forde.double_backward.activations import gelu, relu, silu
from forde.double_backward.batch_norm import BatchNorm
from forde.double_backward.batch_norm_for_compiler import relu_for_compiler
from forde.double_backward.convolution import PLAIN, TRANSPOSED, convolution, in_good_shape
from forde.double_backward.group_norm import group_norm, instance_norm
from forde.double_backward.pooling import MEANS, POOLS, averaging, max_pool2d
from forde.double_backward.statistics import Part, Whole
from forde.errors import FordeError

Operations = Mapping[Callable[..., Any], Callable[..., Any]]
"""By the function of torch's, what is called in its place."""

CONVOLUTIONS: tuple[Callable[..., Any], ...] = (*PLAIN, *TRANSPOSED)
LAYERS: tuple[Callable[..., Any], ...] = (*CONVOLUTIONS, F.linear)
"""All whose arithmetic counts."""
RECTIFIERS: tuple[Callable[..., Any], ...] = (F.relu, torch.relu, Tensor.relu)


class Replacing(TorchFunctionMode):
    """Inside, other functions are called in the place of torch's; they come to the same numbers.

    >>> with Replacing({torch.relu: relu}):
    ...     torch.relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.operations.get(func, func)(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Policy:
    """How a runner's forward passes are differentiated.

    A plain step on a CPU gets the cheap second derivatives of this folder. On a GPU only large convolutions do: others
    would be slower with them, because the loop waits for Python, in which they are written. A trace gets them all, on
    any device. Stacked members get what `torch.vmap` is slow at.

    >>> x, w = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    >>> with Policy("cpu").mode(twice=True):
    ...     y = torch.nn.functional.conv2d(x, w, padding=1)
    >>> torch.equal(y, torch.nn.functional.conv2d(x, w, padding=1))
    True
    """

    device: str
    stacked: bool = False
    """Whether the operations run inside `torch.vmap`."""
    traced: bool = False
    compiler: bool = False
    """Whether a compiler will merge what is traced: derivatives are written out for it."""
    links: bool = True
    """Whether a trace takes the activations of a part of the batch from those of the whole one (`statistics.py`)."""
    processes: Axis | None = None
    """Processes that hold every batch together, so that BatchNorm is over all of them."""

    def mode(self, *, twice: bool, statistics: Whole | Part | None = None) -> AbstractContextManager[object]:
        """What a forward pass runs in.

        Args:
            twice: whether its outputs will be differentiated twice.
            statistics: where BatchNorm's statistics go to, or come from, where members are compared on a part
                of the batch.
        """
        operations = _operations(self.device, self.stacked, self.traced, self.compiler, twice)
        whole = statistics.whole if isinstance(statistics, Part) else statistics
        if statistics is not None and whole is not None and whole.links:
            operations = {**operations, **{f: statistics.layer(operations.get(f, f)) for f in LAYERS}}
        if statistics is not None or self.processes is not None or F.batch_norm in operations:
            operations = {**operations, F.batch_norm: partial(self._batch_norm, statistics)}
        return Replacing(operations) if operations else nullcontext()

    def _batch_norm(self, statistics: Whole | Part | None, *args: Any, **kwargs: Any) -> Tensor:
        call = BatchNorm(*args, **kwargs)
        if not call.training:
            return F.batch_norm(*call)
        if self.stacked and self.processes is not None:
            raise FordeError("BatchNorm is over the batch that several processes share")
        if isinstance(statistics, Part):
            formulas = batch_norm_for_compiler if self.compiler else batch_norm
            return formulas.by_statistics(call, *statistics.next_statistics(call.input.shape[1]))
        shards = 1 if self.processes is None else self.processes.size
        if shards * call.input.numel() <= call.input.shape[1]:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {call.input.size()}"
            )
        differentiable = statistics is not None
        if self.processes is not None or self.stacked:
            out, mean, inverse = batch_norm.composed(call, self.processes)
        elif self.compiler:
            out, mean, inverse = batch_norm_for_compiler.in_training(call, differentiable=differentiable)
        else:
            out, mean, inverse = batch_norm.in_training(call, differentiable=differentiable)
        if statistics is not None:
            statistics.statistics.append((mean, inverse))
        return out


@lru_cache
def _operations(device: str, stacked_: bool, traced: bool, compiler: bool, twice: bool) -> Operations:
    """All but what depends on a batch's statistics; BatchNorm stands for itself."""
    if stacked_:
        relus = {func: stacked.rectifier(func) for func in RECTIFIERS}
        return {F.linear: stacked.linear, F.embedding: stacked.embedding, **relus}
    found: dict[Callable[..., Any], Callable[..., Any]] = {}
    if twice and (device == "cpu" or traced):
        found |= {func: convolution(func, for_compiler=compiler) for func in CONVOLUTIONS}
        found |= dict.fromkeys(RECTIFIERS, relu_for_compiler if compiler else relu)
        found[F.batch_norm] = F.batch_norm
        if not compiler:  # a compiler merges torch's own
            found |= {F.max_pool2d: max_pool2d, F.group_norm: group_norm, F.instance_norm: instance_norm}
            found |= {F.gelu: gelu, F.silu: silu}
            found |= {func: averaging(func) for func in (*POOLS, *MEANS)}
    elif twice:
        found |= {func: convolution(func, if_large=True) for func in CONVOLUTIONS}
    if traced and device == "cuda":
        found[torch.conv2d] = in_good_shape(found.get(torch.conv2d, torch.conv2d))
    return found
