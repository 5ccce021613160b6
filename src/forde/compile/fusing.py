"""torch's compiler, asked for one thing: to merge the operations of a graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from forde.torch_private import compile_graph, has_compiler, has_triton


def can_fuse(device: torch.device) -> bool:
    """Whether torch's compiler can work for this device: Triton for a GPU, a C++ compiler for the CPU."""
    if not has_compiler():
        return False
    if device.type == "cuda":
        return has_triton()
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def fused(graph: fx.GraphModule, *, read_at_once: int | None = None) -> Callable[..., Sequence[Tensor]]:
    """The graph as a function of flat tensors, compiled when it is first called for tensors of those shapes.

    Not by `torch.compile`, which would watch the graph run as Python in order to write it down once more.

    Args:
        read_at_once: tensors that an operation may read before the compiler writes an intermediate result to memory.
    """
    options = None if read_at_once is None else {"realize_reads_threshold": read_at_once}
    compiled: Callable[..., Sequence[Tensor]] | None = None

    def call(*given: Tensor) -> Sequence[Tensor]:
        nonlocal compiled
        if compiled is None:
            compiled = compile_graph(graph, given, options)
        return compiled(*given)

    return call
