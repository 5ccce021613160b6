"""One unit's step as two straight lists of tensor operations, with no Python and no autograd left in them.

The unit's forward pass, its input gradient, and the backward pass through both are run once on tensors without data and
written down, then cut at the exchange (`compile/partition.py`). torch's compiler is asked for one thing: to merge the
operations of both parts (`fused`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize

from forde.compile.partition import is_random, split
from forde.kernels.distance import in_one_piece
from forde.methods.base import Method
from forde.step.core import Step, forward
from forde.step.records import Batch, Forward
from forde.step.runners import Runner
from forde.torch_private import compile_graph, has_compiler, has_triton, traced


@dataclass(frozen=True)
class Traced:
    """Two functions of flat tensors, and what their results mean.

    `first(*given)`, given = (parameters, frozen ones, buffers, metric, x, y, part), returns losses, z and ∂loss/∂z
    (where there are such), the buffers' new values, and what `second` wants kept. `second(*given, *kept, V)` returns
    the gradients of those parameters that have one: of the objective and, where those are wanted apart, of the
    repulsion. Without repulsion `first` does it all, and the gradients stand where the kept tensors would.
    """

    first: fx.GraphModule
    second: fx.GraphModule | None
    buffer_names: list[str]
    has_loss_gradient: bool
    of_objective: list[str]
    """Parameters that the objective's gradients (or those of both together) belong to."""
    of_repulsion: list[str]
    random: bool
    """Whether the forward pass draws random numbers."""
    constants: bool
    """Whether tensors that are neither parameters nor buffers are baked in: these may differ between members."""
    talks: bool
    """Whether messages to other processes are among the operations."""


@dataclass
class _Results:
    """What the function noted while it was traced, besides the tensors that it returned."""

    has_loss_gradient: bool = False
    of_objective: list[str] | None = None
    of_repulsion: list[str] | None = None


def trace(
    runner: Runner,
    method: Method,
    unit: int,
    batch: Batch,
    z: Tensor | None,
    *,
    metric: Tensor | None,
    fused: bool,
    recompute: bool,
) -> Traced:
    """Write down the step of one unit on such a batch, by the functions of `step/core.py`.

    Args:
        runner: under the policy for traced steps.
        z: a tensor like the unit's representation `[m, S, D]`; None where it does not repel.
        metric: matrix `[D, R]` that representations are multiplied with before members are compared.
        fused: a compiler will merge pointwise operations, so phase 3 recomputes them from what phase 1 wrote to memory.
        recompute: keep nothing but random numbers; phase 3 makes the forward pass again.
    """
    parameters = runner.groups[unit]
    frozen, buffers = runner.frozen(unit), runner.buffers(unit)
    names = [*parameters, *frozen, *buffers]
    matrices = [] if metric is None else [metric]
    own_part = list(batch.part) if isinstance(batch.part, tuple) else []
    results, repel = _Results(), z is not None

    def joint(
        state: list[Tensor], matrices: list[Tensor], x: Tensor, y: Tensor, part: list[Tensor], *cotangent: Tensor
    ) -> list[Tensor]:
        tensors = dict(zip(names, state, strict=True))
        seen = replace(batch, x=x, y=y, part=(part[0], part[1]) if part else batch.part)
        with torch.enable_grad():
            leaves = {name: tensors[name].detach().requires_grad_() for name in parameters}
            moving = {name: tensors[name].clone() for name in buffers}
            graph = forward(
                runner, method, unit, seen, repel=repel, metric=matrices[0] if matrices else None,
                tensors={**tensors, **leaves, **moving},
            )  # fmt: skip
            # As `core.pull_back`, but not by way of `.grad`, which would add a copy of each gradient to the trace.
            apart: Sequence[Tensor | None] = [None] * len(leaves)
            roots, seeds = [graph.objective], [torch.ones_like(graph.objective)]
            if graph.z is not None and method.mixes_weights:
                apart = torch.autograd.grad(
                    [graph.z], list(leaves.values()), cotangent, allow_unused=True, retain_graph=True
                )
            elif graph.z is not None:
                roots, seeds = [*roots, graph.z], [*seeds, *cotangent]
            together = torch.autograd.grad(roots, list(leaves.values()), seeds, allow_unused=True)
        results.has_loss_gradient = graph.loss_gradient is not None
        results.of_objective = [n for n, g in zip(leaves, together, strict=True) if g is not None]
        results.of_repulsion = [n for n, g in zip(leaves, apart, strict=True) if g is not None]
        told = [tensor for tensor in (graph.losses, graph.z, graph.loss_gradient) if tensor is not None]
        gradients = [g for g in [*together, *apart] if g is not None]
        return [t.detach() for t in [*told, *moving.values(), *gradients]]

    with torch.no_grad():
        given = (state_of(runner, unit), matrices, batch.x, batch.y, own_part, *([] if z is None else [z]))
        graph = _record(joint, given)
        if repel and batch.part is not None and any(is_random(node) for node in graph.graph.nodes):
            # The part draws numbers of its own, so its activations are not those of the whole batch.
            runner = runner.like(policy=replace(runner.policy, links=False))
            graph = _record(joint, given)
    n_told = 1 + repel + results.has_loss_gradient + len(buffers)
    first, second = split(graph, n_told, cotangent=repel, fused=fused, recompute=recompute)
    assert results.of_objective is not None and results.of_repulsion is not None
    return Traced(
        first,
        second,
        list(buffers),
        results.has_loss_gradient,
        results.of_objective,
        results.of_repulsion,
        random=any(is_random(node) for node in graph.graph.nodes),
        constants=any(node.op == "get_attr" for node in graph.graph.nodes),
        talks=any(str(node.target).startswith("forde.sum_over_processes") for node in graph.graph.nodes),
    )


def state_of(runner: Runner, unit: int) -> list[Tensor]:
    """What a unit's traced functions are given before metric and batch."""
    return [*runner.groups[unit].values(), *runner.frozen(unit).values(), *runner.buffers(unit).values()]


def given_to(runner: Runner, unit: int, batch: Batch, metric: Tensor | None) -> list[Tensor]:
    """All that a unit's traced functions are given."""
    part = batch.part if isinstance(batch.part, tuple) else ()
    return [*state_of(runner, unit), *([] if metric is None else [metric]), batch.x, batch.y, *part]


def trace_exchange(step: Step, z: Tensor) -> tuple[fx.GraphModule, list[str]]:
    """A step's phase 2 as a function of z and the factor; and the names of what it returns."""
    names: list[str] = []

    def forces(z: Tensor, factor: Tensor) -> list[Tensor]:
        with torch.enable_grad(), in_one_piece():
            found = step.exchange(Forward(z.new_zeros(len(z)), z, None), factor)
        told = {n: t for n in ("cotangent", "energy", "mixing", "bandwidth") if (t := getattr(found, n)) is not None}
        names[:] = list(told)
        return [tensor.detach() for tensor in told.values()]

    with torch.no_grad():
        graph = _record(forces, (z, torch.ones((), dtype=torch.float64, device=z.device)))
    return graph, names


def _record(function: Callable[..., list[Tensor]], arguments: tuple[Any, ...]) -> fx.GraphModule:
    """The operations of a function, mutations removed."""
    # In one thread autograd's order depends on the function alone, and so does what compilers find in their caches.
    with torch.autograd.set_multithreading_enabled(False):
        once = traced(function, arguments)
    # A second pass over plain operations: autograd and functionalisation do not nest.
    graph = traced(functionalize(once, remove="mutations"), arguments)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


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
