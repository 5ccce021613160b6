"""One unit's step in parts that can be compared: by the plain engine, from weights rounded differently, and traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from forde.engine.agreement import Parts, Tensors, probing
from forde.engine.base import Engine
from forde.engine.python_state import sources_of
from forde.engine.records import Differentiable
from forde.engine.tracing import Traced, seen_by
from forde.random_state import TORCH, get_random_state, set_random_state
from forde.torch_private import counts_writes, version_of


def plain_parts(engine: Engine, unit: int, x: Tensor, y: Tensor, *, repel: bool, metric: Tensor | None) -> Parts:
    """As the engine makes the step; the unit's buffers move."""
    graph = engine.differentiable(unit, x, y, repel=repel)
    return _parts(graph, engine.groups[unit], engine.buffers(unit), metric)


def rounded_parts(engine: Engine, unit: int, x: Tensor, y: Tensor, *, repel: bool, metric: Tensor | None) -> Parts:
    """The same from weights and inputs that are rounded differently; nothing of the unit changes."""
    parameters = {n: _rounded(p.detach()).requires_grad_() for n, p in engine.groups[unit].items()}
    buffers = {name: buffer.clone() for name, buffer in engine.buffers(unit).items()}
    tensors = {**engine.frozen(unit), **parameters, **buffers}
    x = _rounded(x) if x.is_floating_point() or x.is_complex() else x
    graph = engine.differentiable(unit, x, y, repel=repel, tensors=tensors)
    return _parts(graph, parameters, buffers, metric)


def _rounded(values: Tensor) -> Tensor:
    """Values moved by one unit in the last place up or down."""
    return values * (1 + torch.finfo(values.dtype).eps * torch.sgn(probing(values)))


def _parts(
    graph: Differentiable, parameters: dict[str, Tensor], buffers: dict[str, Tensor], metric: Tensor | None
) -> Parts:
    inputs, nothing = list(parameters.values()), dict.fromkeys(parameters)
    z = seen_by(metric, graph.z)
    of_loss, of_z = nothing, nothing
    if inputs:
        ones = torch.ones_like(graph.objective)
        gradients = torch.autograd.grad(
            [graph.objective], inputs, [ones], allow_unused=True, retain_graph=z is not None
        )
        of_loss = dict(zip(parameters, gradients, strict=True))
        if z is not None and z.requires_grad:
            gradients = torch.autograd.grad([z], inputs, [probing(z)], allow_unused=True)
            of_z = dict(zip(parameters, gradients, strict=True))
    told = {"z": z, "loss gradient": graph.loss_gradient}
    return Parts(
        {"loss": graph.losses.detach().clone()},
        of_loss,
        {name: tensor.detach() for name, tensor in told.items() if tensor is not None},
        of_z,
        {name: buffer.detach().clone() for name, buffer in buffers.items()},
    )


def traced_parts(
    traced: Traced,
    first: Callable[..., Sequence[Tensor]],
    second: Callable[..., Sequence[Tensor]] | None,
    given: Sequence[Tensor],
    parameters: Sequence[str],
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
        z = told["z"]
        cotangent = probing(z.squeeze(0) if traced.alone else z)
        with_z = [tensor.clone() for tensor in second(*given, *rest, cotangent)]
        without = [tensor.clone() for tensor in second(*given, *rest, torch.zeros_like(cotangent))]
    n = len(traced.of_objective)
    of_z = {name: w - o for name, w, o in zip(traced.of_objective, with_z, without, strict=False)}
    if traced.of_repulsion:  # they are told apart already
        of_z = dict(zip(traced.of_repulsion, with_z[n:], strict=True))
    of_loss = {**nothing, **dict(zip(traced.of_objective, without, strict=False))}
    return Parts({"loss": losses}, of_loss, told, {**nothing, **of_z}, buffers)


class Position:
    """Where an engine's members stand: a place to go back to, and to tell by what a forward pass does besides."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine, self._device = engine, device
        self._buffers = [engine.buffers(unit) for unit in range(len(engine.leaves))]
        self._values = [{name: buffer.clone() for name, buffer in unit.items()} for unit in self._buffers]
        self._weights = [(leaf, version_of(leaf), leaf.detach().clone()) for leaf in engine.parameters()]
        self._sources = [each for member in engine.ensemble.members for each in sources_of(member)]
        self._random = get_random_state(device, self._sources)
        self.drew = False
        """Whether the forward passes drew torch's random numbers, as far as `side_effects` has seen."""

    def side_effects(self) -> str | None:
        """What has happened since that a trace would not repeat, in words; None if nothing."""
        now = get_random_state(self._device, self._sources)
        self.drew = self._random.torch_differs(now)
        source = self._random.difference(now)
        if source is not None and source != TORCH:
            return f"it draws {source}, which a trace would not"
        for unit, before in enumerate(self._buffers):
            for name, buffer in self._engine.buffers(unit).items():
                if before.get(name) is not buffer:
                    return f"its forward pass puts another tensor in the place of its buffer '{name}'"
        if any(_was_written(*weights) for weights in self._weights):
            return "its forward pass changes its weights"
        return None

    def restore(self) -> None:
        """Go back."""
        with torch.no_grad():
            for unit, values in enumerate(self._values):
                for name, buffer in self._engine.buffers(unit).items():
                    if name in values and buffer.shape == values[name].shape:
                        buffer.copy_(values[name])
            for parameter, version, value in self._weights:
                if version_of(parameter) != version:
                    parameter.copy_(value)
        set_random_state(self._random, self._sources)


def _was_written(parameter: Tensor, version: int, value: Tensor) -> bool:
    """Whether somebody wrote to a parameter, or, where torch does not count that, changed it."""
    return version_of(parameter) != version and (counts_writes(parameter) or not torch.equal(parameter, value))


@contextmanager
def strictly(engine: Engine) -> Iterator[None]:
    """Inside, arithmetic is of the members' own precision: neither autocast nor TensorFloat-32."""
    before = engine.precision
    on_gpu = engine.ensemble.device.type == "cuda"
    flags: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul] if on_gpu else []
    allowed = [each.allow_tf32 for each in flags]
    engine.precision = "float32"
    try:
        for each in flags:
            each.allow_tf32 = False
        yield
    finally:
        engine.precision = before
        for each, value in zip(flags, allowed, strict=True):
            each.allow_tf32 = value
