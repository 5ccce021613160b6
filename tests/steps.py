"""Steps by the way they are run, for tests that compare them."""

from __future__ import annotations

import torch
from torch import Tensor

from forde import Ensemble, Method
from forde.compile import CompiledStep
from forde.step import Batch, MemberLoop, MemberStack, PlainStep, Step
from forde.step.records import Forward, Memory


def loop(ensemble: Ensemble, method: Method, *, memory: Memory = "speed", metric_apart: bool = False) -> PlainStep:
    """Plain, over members one after another."""
    return PlainStep(MemberLoop(ensemble, method), method, memory=memory, metric_apart=metric_apart)


def stack(ensemble: Ensemble, method: Method, *, memory: Memory = "speed", metric_apart: bool = False) -> PlainStep:
    """Plain, over all members stacked."""
    return PlainStep(MemberStack(ensemble, method), method, memory=memory, metric_apart=metric_apart)


def compiled(
    ensemble: Ensemble, method: Method, *, memory: Memory = "speed", steps: int | None = None, fuse: bool | None = None
) -> CompiledStep:
    """Compiled, over members one after another."""
    return CompiledStep(loop(ensemble, method, memory=memory, metric_apart=True), steps=steps, fuse=fuse)


def compiled_stack(
    ensemble: Ensemble, method: Method, *, memory: Memory = "speed", fuse: bool | None = None
) -> CompiledStep:
    """Compiled, over all members stacked."""
    return CompiledStep(stack(ensemble, method, memory=memory, metric_apart=True), fuse=fuse)


def is_plain(step: Step) -> bool:
    """Whether a compiled step has given up; False for steps that are plain from the start."""
    return isinstance(step, CompiledStep) and step.is_plain


def phase_1(step: Step, x: Tensor, y: Tensor) -> Forward:
    """Losses and representations of a batch on which members repel."""
    batch, factor = step.planned(x, y, step=0, epoch=0, data_size=None)
    assert factor is not None
    return step.forward(batch, repel=True)


def whole_batch(x: Tensor, y: Tensor) -> Batch:
    """All samples repel."""
    return Batch(x, torch.as_tensor(y))
