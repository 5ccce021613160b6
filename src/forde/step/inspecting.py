"""A step taken apart: what each phase came to, member by member. For tests, and for whoever wants to look inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from forde.arguments import Input
from forde.rules import Forces
from forde.step.agreement import Position
from forde.step.core import Step
from forde.step.runners import Runner

Gradients = list[dict[str, Tensor]]
"""By member and name; parameters without a gradient are left out."""


@dataclass(frozen=True)
class InspectedStep:
    """What one step came to; weights are as they were, and buffers have moved once."""

    losses: Tensor
    """`[M]` mean loss of the batch."""
    z: Tensor | None
    """`[M, S, D]` representations that were compared; None where members did not interact."""
    loss_gradients: Tensor | None
    """`[M, S, D]` ∂loss/∂z, where the space or rule asks for it."""
    forces: Forces | None
    """What the exchange made of them."""
    of_objective: Gradients
    """Of loss and priors on outputs or features."""
    of_repulsion: Gradients
    """⟨V_i, ∂z_i/∂θ_i⟩, the repulsion alone."""
    total: Gradients
    """What the optimizer is given."""


def inspect(step: Step, x: Input, y: Tensor) -> InspectedStep:
    """Make a step without an optimizer, and tell what its three phases came to; the parts by its plain step."""
    plain = step.plain
    position = Position(plain.runner, x.device)
    batch, factor = plain.planned(x, y)
    found = plain.forward(batch, repel=factor is not None)
    forces = None if factor is None else plain.exchange(found, factor)
    repulsion = plain.pull_back(forces, apart=True)
    apart = [dict(zip(group, own, strict=False)) for group, own in zip(plain.runner.groups, repulsion, strict=False)]
    members = range(plain.runner.ensemble.n_members)
    of_repulsion = _by_member(plain.runner, apart) if apart else [{} for _ in members]
    of_objective = _gradients(plain.runner)
    position.restore()
    step.update(x, y)
    total = _gradients(step.runner)
    return InspectedStep(found.losses, found.z, found.loss_gradients, forces, of_objective, of_repulsion, total)


def _gradients(runner: Runner) -> Gradients:
    return _by_member(runner, [{n: p.grad for n, p in unit.items()} for unit in runner.leaves])


def _by_member(runner: Runner, units: Sequence[dict[str, Tensor | None]]) -> Gradients:
    """Units that are one member each, or one unit of all members stacked `[M, ...]`, as members."""
    members = runner.ensemble.n_members
    there = [{n: g.detach().clone() for n, g in unit.items() if g is not None} for unit in units]
    return there if len(there) == members else [{n: g[i] for n, g in there[0].items()} for i in range(members)]
