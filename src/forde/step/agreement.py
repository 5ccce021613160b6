"""Whether two ways to make a unit's step come to the same: what a compiled or stacked step must show first.

Loss, its gradient, the representation, its pull back and buffers are compared apart, tensor by tensor. What counts as
the same belongs to the precision: a tensor may differ by a small share of its length, and by a few times what rounding
the weights differently does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forde.errors import FordeError, first_line
from forde.methods.base import Method
from forde.random_state import TORCH, get_random_state, set_random_state
from forde.spaces import View
from forde.step.checks import explain_missing_derivative
from forde.step.core import forward
from forde.step.python_state import random_sources_of
from forde.step.records import Batch, Graph
from forde.step.runners import MemberLoop, Runner
from forde.step.stack import MemberStack
from forde.torch_private import counts_writes, version_of

if TYPE_CHECKING:
    from forde.step.plain import PlainStep

SHARE = {torch.float64: 1e-9, torch.complex128: 1e-9}
SHARE_FLOAT32 = 1e-4
"""Relative difference that is always taken for rounding, by type; this one for all types that `SHARE` does not name."""
MERGED = 10.0
"""Factor on it where a compiler has merged operations, because it sums in another order."""
ROUNDINGS = 10.0
"""Differences may also be so many times as large as what another rounding of the weights makes."""
ON_GPU = 10.0
"""Factor on a GPU, whose kernels sum in orders of their own, which now and then switches one of many ReLUs."""
GROSS, ROUGH = 2e-2, 0.7
"""Largest relative difference of a unit's whole gradient. In bfloat16 or TensorFloat-32 rounding alone moves that of a
deep network with BatchNorm by a quarter."""
NOTHING = 1e-12
"""Absolute difference that counts as none, where tensors are zero."""

Tensors = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Parts:
    """What one unit's step from a given state comes to."""

    loss: Tensors
    loss_gradient: Tensors
    representation: Tensors
    repulsion_gradient: Tensors
    """The gradient of ⟨V, z⟩ for a given V, where members interact."""
    buffers: Tensors

    def of_member(self, index: int) -> Parts:
        """Those of one of several stacked members."""
        return Parts(*({n: t if t is None else t[index] for n, t in part.items()} for part in self.sections().values()))

    def sections(self) -> dict[str, Tensors]:
        """By name in words."""
        return {
            "its loss": self.loss,
            "its gradient": self.loss_gradient,
            "what it compares members by": self.representation,
            "its repulsion": self.repulsion_gradient,
            "a buffer": self.buffers,
        }


def probing(z: Tensor) -> Tensor:
    """A cotangent like z that leaves no direction out: numbers of size 1 without a pattern.

    >>> probing(torch.zeros(1, 3)).shape
    torch.Size([1, 3])
    """
    numbers = torch.arange(z.numel(), device=z.device, dtype=torch.float64)
    return torch.cos(numbers * 2.399963).view(z.shape).to(z.dtype)  # the golden angle


def disagreement(found: Parts, expected: Parts, rounded: Parts | None, *, merged: bool = False) -> str | None:
    """What differs by more than rounding, in words; None if nothing.

    Args:
        rounded: what is expected of weights that are rounded differently, for a measure of rounding.
        merged: whether a compiler has merged operations.

    >>> one = Parts({"loss": torch.ones(1)}, {}, {}, {}, {})
    >>> disagreement(Parts({"loss": torch.ones(1) + 1e-3}, {}, {}, {}, {}), one, one)
    "its loss differs by 0.10% ('loss')"
    """
    others = expected.sections() if rounded is None else rounded.sections()
    for what, wanted in expected.sections().items():
        own = found.sections()[what]
        if what == "its gradient" and _there(own) != _there(wanted):  # optimizers leave those without one alone
            return "other parameters have gradients"
        largest = max((_length(tensor) for tensor in wanted.values() if tensor is not None), default=0.0)
        for name in [*_there(wanted), *(_there(own) - _there(wanted))]:
            tensor, value, other = wanted.get(name), own.get(name), others[what].get(name)
            like = value if tensor is None else tensor
            assert like is not None
            tensor, value = (torch.zeros_like(like) if t is None else t for t in (tensor, value))
            error, size = _length(value - tensor), _length(tensor)
            rounding = 0.0 if other is None else _length(other - tensor)
            share = SHARE.get(tensor.dtype, SHARE_FLOAT32 * (ON_GPU if tensor.is_cuda else 1))
            share *= MERGED if merged else 1
            # A gradient that is zero but for rounding (that of a bias before BatchNorm) is measured by the others.
            noise = ROUNDINGS * torch.finfo(tensor.dtype).eps * largest if tensor.dtype.is_floating_point else 0.0
            if not error <= share * size + ROUNDINGS * rounding + noise + NOTHING:
                return f"{what} differs by {error / size if size else float('inf'):.2%} ('{name}')"
    return None


def _there(tensors: Tensors) -> set[str]:
    return {name for name, tensor in tensors.items() if tensor is not None}


def _length(tensor: Tensor) -> float:
    wide = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
    return float(torch.linalg.vector_norm(wide))


def gross_disagreement(
    groups: Sequence[Mapping[str, Tensor]], expected: Sequence[Mapping[str, Tensor]], *, rough: bool
) -> str | None:
    """What differs grossly between the gradients in `groups` and those expected, in words; None if nothing.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> weight.sum().backward()
    >>> gross_disagreement([{"weight": weight}], [{"weight": torch.tensor([4.0])}], rough=True)
    'its gradient differs by 75.0%'
    """
    for unit, (found, wanted) in enumerate(zip(gradients_by_name(groups), expected, strict=True)):
        if set(found) != set(wanted):
            return f"other parameters of unit {unit} have gradients"
        if not wanted:
            continue
        error = torch.stack([(found[name] - wanted[name]).double().norm() for name in wanted]).norm()
        size = torch.stack([gradient.double().norm() for gradient in wanted.values()]).norm()
        if not float(error) <= (ROUGH if rough else GROSS) * float(size) + NOTHING:
            return f"its gradient differs by {float(error / size):.1%}"
    return None


def gradients_by_name(groups: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Gradients of those parameters that have one, by unit and name.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> weight.sum().backward()
    >>> gradients_by_name([{"weight": weight, "unused": torch.ones(1, requires_grad=True)}])
    [{'weight': tensor([1.])}]
    """
    return [{name: p.grad for name, p in group.items() if p.grad is not None} for group in groups]


def plain_parts(
    runner: Runner,
    method: Method,
    unit: int,
    batch: Batch,
    *,
    repel: bool,
    metric: Tensor | None = None,
    look: Callable[[View], None] | None = None,
) -> Parts:
    """As a plain step makes it; the unit's buffers move."""
    graph = forward(runner, method, unit, batch, repel=repel, metric=metric, look=look)
    return _parts(graph, runner.groups[unit], runner.buffers(unit))


def rounded_parts(
    runner: Runner, method: Method, unit: int, batch: Batch, *, repel: bool, metric: Tensor | None = None
) -> Parts:
    """The same from weights and inputs that are rounded differently; nothing of the unit changes."""
    parameters = {n: _rounded(p.detach()).requires_grad_() for n, p in runner.groups[unit].items()}
    buffers = {name: buffer.clone() for name, buffer in runner.buffers(unit).items()}
    tensors = {**runner.frozen(unit), **parameters, **buffers}
    x = _rounded(batch.one) if batch.one.is_floating_point() or batch.one.is_complex() else batch.one
    graph = forward(runner, method, unit, replace(batch, x=x), repel=repel, metric=metric, tensors=tensors)
    return _parts(graph, parameters, buffers)


def _rounded(values: Tensor) -> Tensor:
    """Values moved by one unit in the last place up or down."""
    return values * (1 + torch.finfo(values.dtype).eps * torch.sgn(probing(values)))


def _parts(graph: Graph, parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Parts:
    inputs, nothing, z = list(parameters.values()), dict.fromkeys(parameters), graph.z
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


class Position:
    """The state of a runner's members: buffers, weights and random numbers, to be restored, or compared with later.

    Args:
        unit: take this unit only.
        weights: leave them out where False, because forward passes alone do not change them.
    """

    def __init__(self, runner: Runner, device: torch.device, unit: int | None = None, *, weights: bool = True) -> None:
        units = range(len(runner.leaves)) if unit is None else [unit]
        networks = runner.ensemble.members if unit is None else [runner.networks[unit]]
        leaves = runner.parameters() if weights else []
        self._runner, self._device = runner, device
        self._buffers = {unit: runner.buffers(unit) for unit in units}
        self._values = {u: {name: buffer.clone() for name, buffer in own.items()} for u, own in self._buffers.items()}
        self._weights = [(leaf, version_of(leaf), leaf.detach().clone()) for leaf in leaves]
        self._sources = [each for network in networks for each in random_sources_of(network)]
        self._random = get_random_state(device, self._sources)
        self.drew = False
        """Whether the forward passes drew torch's random numbers, as far as `side_effects` has seen."""

    def side_effects(self) -> str | None:
        """What forward passes have done since then that a trace would not repeat, in words; None if nothing."""
        now = get_random_state(self._device, self._sources)
        self.drew = self._random.torch_differs(now)
        source = self._random.difference(now)
        if source is not None and source != TORCH:
            return f"it draws {source}, which a trace would not"
        for unit, before in self._buffers.items():
            for name, buffer in self._runner.buffers(unit).items():
                if before.get(name) is not buffer:
                    return f"its forward pass puts another tensor in the place of its buffer '{name}'"
        if any(_was_written(*weights) for weights in self._weights):
            return "its forward pass changes its weights"
        return None

    def restore(self) -> None:
        """Go back."""
        with torch.no_grad():
            for unit, values in self._values.items():
                for name, buffer in self._runner.buffers(unit).items():
                    if name in values and buffer.shape == values[name].shape:
                        buffer.copy_(values[name])
            for parameter, version, value in self._weights:
                if version_of(parameter) != version:
                    parameter.copy_(value)
        set_random_state(self._random, self._sources)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Go back, to make a forward pass again inside; afterwards random numbers go on from where they are now."""
        now = get_random_state(self._device, self._sources)
        self.restore()
        try:
            yield
        finally:
            set_random_state(now, self._sources)


def _was_written(parameter: Tensor, version: int, value: Tensor) -> bool:
    """Whether somebody wrote to a parameter, or, where torch does not count that, changed it."""
    return version_of(parameter) != version and (counts_writes(parameter) or not torch.equal(parameter, value))


DRAW = "they draw random numbers, so they cannot be compared with a loop"


def unlike_a_loop(step: PlainStep, batch: Batch, *, repel: bool) -> str | None:
    """What stacked members do differently from each by itself, in words; None if nothing."""
    stack = step.runner
    assert isinstance(stack, MemberStack)
    start = Position(stack, batch.x.device)
    loop = MemberLoop(stack.ensemble, step.method, stack.precision)
    loop.before_step(batch.x)
    method, metric = step.method, step.metric
    try:
        try:
            found = plain_parts(
                stack, method, 0, batch, repel=repel, metric=metric, look=partial(step.look, repel=repel)
            )
        except Exception as error:
            if isinstance(error, FordeError) and error.__cause__ is None:
                raise
            try:  # it may be the network's fault
                step.look_at_graph(forward(loop, method, 0, batch, repel=repel, metric=metric).z)
                plain_parts(loop, method, 0, batch, repel=repel, metric=metric)
            except RuntimeError as fault:
                explain_missing_derivative(fault)
                raise
            return f"stacked it fails ({first_line(error.__cause__ or error)})"
        change = stack.watch.change()
        reason = start.side_effects()
        if change is not None or reason is not None:
            return reason or f"{change} after its forward pass"
        if start.drew:
            return DRAW
        start.restore()
        rounded = rounded_parts(stack, method, 0, batch, repel=repel, metric=metric)
        for member in range(stack.ensemble.n_members):
            start.restore()
            own = plain_parts(loop, method, member, batch, repel=repel, metric=metric)
            reason = disagreement(found.of_member(member), own, rounded.of_member(member))
            if reason is not None:
                return f"{reason} in member {member}"
        return None
    finally:
        start.restore()
        stack.watch.restore()
