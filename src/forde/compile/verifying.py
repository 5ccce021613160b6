"""One unit's trace against its plain step, and what a compiler made of the trace against the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from forde.compile.traced import Function, Program, TracedStep
from forde.compile.tracing import Traced, given_to, trace
from forde.step.agreement import (
    Parts,
    Position,
    Tensors,
    disagreement,
    plain_parts,
    probing,
    rounded_parts,
)
from forde.step.plain import PlainStep
from forde.step.records import Batch
from forde.step.runners import Runner


@dataclass(frozen=True)
class UnitCheck:
    """Called with a unit and its program: what the program does differently from the plain step; None if nothing."""

    plain: PlainStep
    strict: Runner
    """The runner that traces, in float32: a trace holds its autocast, so one without it has to be made anew."""
    position: Position
    agreed: Callable[[str | None], str | None]
    """Turns a reason of this process into one of all that share the batch, see `Compiler._agreed`."""
    fuse: bool
    rough: bool
    """Whether convolutions are of bfloat16 or TensorFloat-32."""

    def __call__(self, unit: int, program: Program, batch: Batch, z: Tensor | None) -> str | None:
        repel, method = z is not None, self.plain.method
        metric = self.plain.metric if repel else None
        traced, rough = program.traced, self.rough
        step = TracedStep(self.plain, [program])
        runner = self.plain.runner.like(precision="float32")
        with strict_products(runner.ensemble.device) if rough else nullcontext():
            if self.plain.runner.precision == "bf16":
                like = None if z is None else z[self.plain.runner.rows[unit]]
                traced = trace(
                    self.strict, method, unit, step.laid_out(batch), like, metric=metric, fused=False, recompute=False
                )

            def compare(batch: Batch, first: Any, second: Any, *, merged: bool) -> str | None:
                self.position.restore()
                plainly = plain_parts(runner, method, unit, batch, repel=repel, metric=metric)
                self.position.restore()
                rounded = rounded_parts(runner, method, unit, batch, repel=repel, metric=metric)
                self.position.restore()
                given = given_to(self.plain.runner, unit, step.laid_out(batch), metric)
                own = traced_parts(traced, first, second, given, list(self.plain.runner.groups[unit]))
                return self.agreed(disagreement(own, plainly, rounded, merged=merged))

            reason = compare(batch, traced.first, traced.second, merged=False)
            if reason is not None and batch.one.is_floating_point():
                # Rounding may switch a ReLU, but not twice; what is wrong with a trace is so with any batch.
                moved = replace(batch, x=batch.one + 1e-3 * batch.one.std(correction=0) * probing(batch.one))
                reason = compare(moved, traced.first, traced.second, merged=False) and reason
            if reason is None and self.fuse and not rough and not traced.random:
                reason = compare(batch, program.first, program.second, merged=True)
        return reason


def traced_parts(
    traced: Traced, first: Function, second: Function | None, given: Sequence[Tensor], parameters: Sequence[str]
) -> Parts:
    """As the two functions that were traced (or what a compiler made of them) make the step; nothing is written."""
    nothing: dict[str, Tensor | None] = dict.fromkeys(parameters)
    with torch.no_grad():
        results = list(first(*given))
        losses = results.pop(0)
        told = {} if second is None else {"z": results.pop(0)}
        if traced.has_loss_gradient:
            told["loss gradient"] = results.pop(0)
        buffers = dict(zip(traced.buffer_names, results, strict=False))
        rest = results[len(buffers) :]
        if second is None:
            of_loss: Tensors = {**nothing, **dict(zip(traced.of_objective, rest, strict=True))}
            return Parts({"loss": losses}, of_loss, told, nothing, buffers)
        cotangent = probing(told["z"])
        with_z = [tensor.clone() for tensor in second(*given, *rest, cotangent)]
        without = [tensor.clone() for tensor in second(*given, *rest, torch.zeros_like(cotangent))]
    n = len(traced.of_objective)
    of_z = {name: w - o for name, w, o in zip(traced.of_objective, with_z, without, strict=False)}
    if traced.of_repulsion:  # they are told apart already
        of_z = dict(zip(traced.of_repulsion, with_z[n:], strict=True))
    of_loss = {**nothing, **dict(zip(traced.of_objective, without, strict=False))}
    return Parts({"loss": losses}, of_loss, told, {**nothing, **of_z}, buffers)


@contextmanager
def strict_products(device: torch.device) -> Iterator[None]:
    """Inside, arithmetic on a GPU is of the members' own precision, not TensorFloat-32."""
    flags: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul] if device.type == "cuda" else []
    allowed = [each.allow_tf32 for each in flags]
    try:
        for each in flags:
            each.allow_tf32 = False
        yield
    finally:
        for each, value in zip(flags, allowed, strict=True):
            each.allow_tf32 = value
