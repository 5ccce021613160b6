"""A step taken apart: what each phase came to, member by member. For tests, and for whoever wants to look inside."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from forde.engine.base import Engine
from forde.engine.choose import EngineName, make_engine
from forde.engine.exchange import exchange
from forde.engine.records import Memory, Precision
from forde.engine.verifying import Position
from forde.ensemble import Ensemble
from forde.methods.base import Method
from forde.rules import Forces

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
    """What the optimiser is given."""


def inspect_step(
    ensemble: Ensemble,
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    engine: EngineName = "eager",
    precision: Precision = "float32",
    memory: Memory = "speed",
    data_size: int | None = None,
) -> InspectedStep:
    """Make a step without an optimiser, and tell what its three phases came to.

    Args:
        x: `[B, ...]`.
        y: `[B]`.
        data_size: N; the batch size if left out.

    >>> import torch
    >>> from torch import nn
    >>> from forde import method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2).train()
    >>> found = inspect_step(ensemble, method("forde-identity"), torch.randn(8, 4), torch.randint(3, (8,)))
    >>> found.z.shape, sorted(found.of_repulsion[0])
    (torch.Size([2, 8, 4]), ['weight'])
    """
    runner = make_engine(engine, ensemble, method, precision, memory)
    try:
        position = Position(runner, x.device)
        factor = runner.factor(y, step=0, epoch=0, data_size=data_size)
        found = runner.forward(x, y, repel=factor is not None)
        forces: Forces | None = None
        of_repulsion: Gradients = [{} for _ in range(ensemble.n_members)]
        if found.z is not None and factor is not None:
            forces = exchange(method, found.z, found.loss_gradients, factor)
            of_repulsion = _by_member(runner, runner.repulsion_gradients(forces))
        of_objective = _gradients(runner)
        position.restore()
        runner.step(x, y, data_size=data_size)
        return InspectedStep(
            found.losses, found.z, found.loss_gradients, forces, of_objective, of_repulsion, _gradients(runner)
        )
    finally:
        runner.close()
        ensemble.zero_grad(set_to_none=True)


def _gradients(runner: Engine) -> Gradients:
    return _by_member(runner, [{n: p.grad for n, p in unit.items()} for unit in runner.leaves])


def _by_member(runner: Engine, units: list[dict[str, Tensor | None]]) -> Gradients:
    """Units that are one member each, or one unit of all members stacked `[M, ...]`, as members."""
    members = runner.ensemble.n_members
    there = [{n: g.detach().clone() for n, g in unit.items() if g is not None} for unit in units]
    return there if len(there) == members else [{n: g[i] for n, g in there[0].items()} for i in range(members)]
