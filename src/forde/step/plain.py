"""The plain step: what `step/core.py` says, unit after unit, by torch's autograd. The oracle of every other step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from forde.arguments import Input
from forde.errors import FordeError
from forde.methods.base import Method
from forde.rules import Forces
from forde.spaces import View
from forde.step import core
from forde.step.agreement import DRAW, Position, unlike_a_loop
from forde.step.checks import refuse_different_sizes, refuse_once_differentiable, refuse_unrepeatable
from forde.step.core import Repulsion, Step
from forde.step.python_state import Watch
from forde.step.records import Batch, Batches, Forward, Graph, Memory
from forde.step.runners import Runner

log = logging.getLogger(__name__)


class _Start(NamedTuple):
    """Where a unit's forward pass began, so that it can be made again, as it was, instead of keeping its graph."""

    batch: Batch
    position: Position
    watch: Watch | None
    """Notices what the pass changes besides tensors; None where this was looked at before."""


class PlainStep(Step):
    """Units one after another; their graphs are kept while members interact, or made again (`memory`).

    Args:
        metric_apart: whether each member applies the kernel's metric for itself, beside the others, instead of the
            exchange for all.

    >>> from torch import nn
    >>> from forde import Ensemble, method
    >>> from forde.step import MemberLoop
    >>> forde_identity = method("forde-identity")
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> step = PlainStep(MemberLoop(ensemble, forde_identity), forde_identity)
    >>> report = step.update(torch.randn(8, 4), torch.randint(3, (8,)))
    >>> report.losses.shape, ensemble.members[0].weight.grad.shape
    (torch.Size([2]), torch.Size([3, 4]))
    """

    def __init__(self, runner: Runner, method: Method, *, memory: Memory = "speed", metric_apart: bool = False) -> None:
        super().__init__(runner, method)
        self.memory = memory
        self.metric: Tensor | None = None
        if metric_apart and method.kernel is not None:
            dtype = torch.promote_types(runner.ensemble.dtype, torch.float32)
            apart = method.kernel.metric_apart(runner.ensemble.device, dtype)
            if apart is not None:
                self.metric, self.comparison = apart[0], replace(method, kernel=apart[1])
        if runner.ensemble.device.type == "cpu":
            keep_freed_memory()
        self._kept: list[Graph | _Start] = []
        self._graph_checked = False
        self._alike = runner.known
        """Whether it is known that stacked members compute what each would by itself; else the first step compares."""
        self._changes_python: dict[int, str | None] = {}
        """By unit, what its forward pass changes besides tensors, in words; only of units whose pass is made again."""
        self._first_losses: dict[int, Tensor] = {}
        """By unit, the losses of the first pass that will be made again, to be compared with those of the second."""
        self._checked_labels: set[torch.Size] = set()
        """Shapes of outputs that the labels of this step's batch were compared with."""
        self._known_shapes: set[tuple[torch.Size, torch.Size]] = set()
        """Shapes of outputs and targets that fit each other."""

    def forward(self, batch: Batches, *, repel: bool) -> Forward:
        runner = self.runner
        runner.before_step(batch.x if isinstance(batch, Batch) else batch[0].x)
        if not self._alike and isinstance(batch, Batch):
            self._refuse_unlike_a_loop(batch, repel=repel)
            self._alike = True
        self._checked_labels.clear()
        self._first_losses.clear()
        self._kept = []
        losses: list[Tensor] = []
        z: list[Tensor] = []
        gradients: list[Tensor] = []
        look = partial(self.look, repel=repel)
        for unit, group in enumerate(runner.groups):
            own = batch if isinstance(batch, Batch) else batch[unit]
            if not isinstance(batch, Batch):
                self._checked_labels.clear()
            start = None if not repel or self.memory == "speed" else self._start(unit, own)
            graph = core.forward(runner, self.method, unit, own, repel=repel, metric=self.metric, look=look)
            if not repel:
                core.pull_back(graph, None, list(group.values()))
            else:
                if not self._graph_checked:
                    self.look_at_graph(graph.z)
                self._kept.append(graph if start is None else self._unless_it_leaves_a_trace(unit, graph, start))
            losses.append(graph.losses.detach())
            if graph.z is not None:
                z.append(graph.z.detach())
            if graph.loss_gradient is not None:
                gradients.append(graph.loss_gradient)
        if not repel:
            return Forward(torch.cat(losses), None, None)
        if any(each[0].numel() != z[0][0].numel() for each in z):
            refuse_different_sizes([each[0].numel() for each in z], self.method.space)
        return Forward(torch.cat(losses), torch.cat(z), torch.cat(gradients) if gradients else None)

    def unlike_a_loop(self, x: Input, y: Tensor) -> str | None:
        """What stacked members would do differently on such batches from each by itself, in words; None if nothing.

        Nothing moves: weights, buffers and random numbers are as before. Where there is nothing, the first step does
        not look again. Members that draw random numbers cannot be compared, and so differ.
        """
        runner, repel = self.runner, self.method.space is not None and self.runner.ensemble.n_members > 1
        runner.before_step(x)
        reason = unlike_a_loop(self, Batch(x, y, self.method.compared(len(y)) if repel else None), repel=repel)
        self._alike = reason is None
        return reason

    def _refuse_unlike_a_loop(self, batch: Batch, *, repel: bool) -> None:
        """Stop where stacked members do something else than each by itself would."""
        reason = unlike_a_loop(self, batch, repel=repel)
        if reason == DRAW:
            log.info("engine: stacked members draw random numbers, so they were not compared with a loop")
        elif reason is not None:
            raise FordeError(
                f"engine='vectorized' runs members unlike a loop would, because {reason}; use engine='eager' or 'auto'."
            )

    @property
    def plain(self) -> PlainStep:
        return self

    def pull_back(self, forces: Forces | None, *, apart: bool = False) -> Repulsion:
        if forces is None:
            return []
        repulsion: list[Sequence[Tensor | None]] = []
        self._kept.reverse()
        for unit, group in enumerate(self.runner.groups):
            kept = self._kept.pop()
            graph = kept if isinstance(kept, Graph) else self._again(unit, kept)
            cotangent = forces.cotangent[self.runner.rows[unit]]
            repulsion.append(core.pull_back(graph, cotangent, list(group.values()), apart=apart))
        return repulsion

    # Making forward passes again

    def keeps_graph(self, unit: int) -> bool:
        """Whether a unit's graph waits for the exchange; otherwise its forward pass is made again."""
        units = len(self.runner.groups)
        kept = {"speed": units, "balanced": units // 2, "low": 0}[self.memory]
        return unit < kept or self._changes_python.get(unit) is not None

    def _start(self, unit: int, batch: Batch) -> _Start | None:
        """Where a forward pass begins whose graph will not be kept; None where it will."""
        if self.keeps_graph(unit):
            return None
        watch = Watch([self.runner.networks[unit]]) if unit not in self._changes_python else None
        return _Start(batch, Position(self.runner, batch.x.device, unit, weights=False), watch)

    def _unless_it_leaves_a_trace(self, unit: int, graph: Graph, start: _Start) -> Graph | _Start:
        """What is kept of a forward pass: its beginning, or all of it where it cannot be made again."""
        if start.watch is None:
            return start
        self._first_losses[unit] = graph.losses.detach()
        change = self._changes_python[unit] = start.watch.change()
        if change is None:
            return start
        log.info("memory: the graph of unit %d is kept, because its forward pass leaves a trace: %s", unit, change)
        return graph

    def _again(self, unit: int, start: _Start) -> Graph:
        """The forward pass as it was."""
        with start.position.again():
            graph = core.forward(self.runner, self.method, unit, start.batch, repel=True, metric=self.metric)
        first = self._first_losses.pop(unit, None)
        if first is not None:
            refuse_unrepeatable(first, graph.losses, f"use memory='speed' (it is '{self.memory}')")
        return graph

    # Looking at what networks return

    def look(self, view: View, *, repel: bool) -> None:
        """Shapes are looked at once for each kind of batch, labels once per batch instead of once per member."""
        likelihood, space = view.likelihood, self.method.space
        output = view.output[0] if self.runner.sample_axis == 1 else view.output
        shapes = output.shape, view.y.shape
        if shapes not in self._known_shapes:
            likelihood.check_output(output, view.y)
        if output.shape[1:] not in self._checked_labels:
            self._checked_labels.add(output.shape[1:])
            likelihood.check_labels(output, view.y, scalar=repel and space is not None and space.needs_scalar)
            if not self._known_shapes:
                likelihood.look_at(output.detach(), view.y)
        self._known_shapes.add(shapes)

    def look_at_graph(self, z: Tensor | None) -> None:
        """Find operations without a second derivative, once."""
        self._graph_checked = True
        if self.method.space is not None and self.method.space.needs_input_gradient and z is not None:
            refuse_once_differentiable(z)


LARGEST_THAT_COUNTS = 2**25
ROUNDING = 2**14
"""More than what glibc adds to a block."""


def keep_freed_memory() -> None:
    """Let the process keep the memory that a step on a CPU frees, since the next step asks for it again.

    glibc gives blocks above a threshold back to the system at once, and other memory when enough of it is free; each
    page that comes back later costs a fault. Its thresholds follow the largest block freed so far, up to 32 MiB. One
    such block is freed here, as a program with larger networks would: 64 MiB of free memory stay from then on. Nothing
    is written to the block, so the system never has to find memory for it. Other allocators do not mind.

    >>> keep_freed_memory()
    """
    torch.empty(LARGEST_THAT_COUNTS - ROUNDING, dtype=torch.uint8, device="cpu")
