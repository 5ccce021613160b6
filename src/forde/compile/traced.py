"""A step that runs traced functions instead of autograd: each unit's phase 1 and phase 3, and the exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from forde.compile.tracing import Traced, given_to
from forde.cuda_graph import side_by_side
from forde.rules import Forces
from forde.step.core import Repulsion, Step, report_of
from forde.step.plain import PlainStep
from forde.step.records import Batch, Batches, Forward, StepReport
from forde.torch_private import copy_each

Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Program:
    """A unit's step, traced, and what a compiler made of it."""

    traced: Traced
    first: Function
    second: Function | None


class TracedStep(Step):
    """All steps on batches of one shape, with or without repulsion.

    Args:
        plain: the step that was traced.
        programs: one for each unit; the same object where units share it.
    """

    def __init__(self, plain: PlainStep, programs: list[Program]) -> None:
        super().__init__(plain.runner, plain.method)
        self._plain, self.programs = plain, programs
        self.exchange_programs: dict[torch.Size, tuple[Function, list[str]] | None] = {}
        """By the shape of z: phase 2 as a traced function of z and the factor, and the names of its results. For other
        shapes the plain step's exchange is run."""
        self.streams: Sequence[torch.cuda.Stream] = ()
        """Where units are queued, while a CUDA graph is recorded."""
        self._waiting: list[list[Tensor]] = []
        """By unit, the tensors that phase 3 reads from phase 1."""
        self._new_buffers: list[tuple[list[Tensor], Sequence[Tensor]]] = []

    @property
    def plain(self) -> PlainStep:
        return self._plain

    def laid_out(self, batch: Batch) -> Batch:
        """The batch in the one memory layout that the programs take."""
        part = batch.part
        if isinstance(part, tuple):
            assert isinstance(part[0], Tensor)
            part = self.runner.laid_out(part[0]), part[1].contiguous()
        return replace(batch, x=self.runner.laid_out(batch.one), y=batch.y.contiguous(), part=part)

    def forward(self, batch: Batches, *, repel: bool) -> Forward:
        assert isinstance(batch, Batch)
        runner, batch = self.runner, self.laid_out(batch)
        for parameter in runner.parameters():
            parameter.grad = None
        metric = self._plain.metric if repel else None
        found: list[list[Tensor]] = []
        self._waiting, self._new_buffers = [], []
        with self._products():
            for unit in side_by_side(len(self.programs), self.streams):
                program, given = self.programs[unit], given_to(runner, unit, batch, metric)
                with torch.no_grad():
                    results = list(program.first(*given))
                n_told = 1 + repel + program.traced.has_loss_gradient
                told, results = results[:n_told], results[n_told:]
                n_buffers = len(program.traced.buffer_names)
                self._new_buffers.append((list(runner.buffers(unit).values()), results[:n_buffers]))
                if repel:
                    self._waiting.append([*given, *results[n_buffers:]])
                else:
                    for name, gradient in zip(program.traced.of_objective, results[n_buffers:], strict=True):
                        runner.groups[unit][name].grad = gradient
                found.append(told)
        losses, *others = (torch.cat(column) for column in zip(*found, strict=True))
        return Forward(losses, others[0] if repel else None, others[1] if len(others) > 1 else None)

    def exchange(self, found: Forward, factor: float | Tensor) -> Forces:
        assert found.z is not None
        program = self.exchange_programs.get(found.z.shape)
        if program is None:
            with self._products():
                return self._plain.exchange(found, factor)
        function, names = program
        factor = torch.as_tensor(factor, dtype=torch.float64, device=found.z.device)
        with torch.no_grad(), self._products():
            return Forces(**dict(zip(names, function(found.z, factor), strict=True)))

    def pull_back(self, forces: Forces | None, *, apart: bool = False) -> Repulsion:
        """The trace has decided what is apart: the repulsion where `method.mixes_weights`, and only there."""
        repulsion: list[Sequence[Tensor | None]] = []
        if forces is not None:
            with self._products():
                for unit in side_by_side(len(self.programs), self.streams):
                    program, group = self.programs[unit], self.runner.groups[unit]
                    assert program.second is not None
                    cotangent = forces.cotangent[self.runner.rows[unit]].contiguous()
                    with torch.no_grad():
                        gradients = list(program.second(*self._waiting[unit], cotangent))
                    for name in program.traced.of_objective:
                        group[name].grad = gradients.pop(0)
                    own = dict(zip(program.traced.of_repulsion, gradients, strict=True))
                    repulsion.append([own.get(name) for name in group])
            self._waiting = []
        self._move_buffers()
        return repulsion

    def finish(self, forces: Forces | None, repulsion: Repulsion) -> None:
        super().finish(forces, repulsion)
        self.runner.match_layouts()

    def _move_buffers(self) -> None:
        """Only after phase 3, which with `memory="low"` starts from the same buffers as phase 1."""
        by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for buffers, values in self._new_buffers:
            for buffer, value in zip(buffers, values, strict=True):
                old, new = by_type.setdefault(buffer.dtype, ([], []))
                old.append(buffer)
                new.append(value)
        with torch.no_grad():
            for old, new in by_type.values():
                copy_each(old, new)
        self._new_buffers = []

    def _products(self) -> Any:
        return _tensor_float_products() if self.runner.precision == "bf16" else nullcontext()


def phases(step: Step, batch: Batches, factor: float | Tensor | None) -> StepReport:
    """A step's three phases on a batch that is planned already: gradients are left in `.grad`, losses not looked at."""
    found = step.forward(batch, repel=factor is not None)
    forces = None if factor is None else step.exchange(found, factor)
    step.finish(forces, step.pull_back(forces, apart=step.method.mixes_weights))
    return report_of(found, forces)


@contextmanager
def _tensor_float_products() -> Iterator[None]:
    """Inside, products of float32 matrices may be of TensorFloat-32.

    For the metric of representations that come from bfloat16 arithmetic, and so are rougher than that themselves.
    """
    try:
        before = torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # the user set it by torch's newer names, which do not mix with this one
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
