"""Numbers that are not finite: found before they reach the weights, or at the latest before they reach a file."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from forde.ensemble import Ensemble
from forde.errors import NonFiniteError
from forde.step import Step, StepReport
from forde.torch_private import copy_each

NonFinite = Literal["stop", "skip", "roll_back"]
"""What to do about a loss or gradient that is not finite."""


class CarefulStep:
    """A step that leaves weights, running statistics and optimizer as they were if a loss or gradient is not finite.

    The engine looks at losses by itself; gradients and running statistics cost one more pass over each, which is why
    only those pay for it who want to go on after such a step.
    """

    def __init__(self, engine: Step, optimizer: Optimizer) -> None:
        self.engine, self.optimizer = engine, optimizer
        self._statistics = [
            b for unit in range(len(engine.runner.groups)) for b in engine.runner.buffers(unit).values()
        ]
        self._before = [torch.empty_like(b) for b in self._statistics]

    def __call__(self, x: Any, y: Any, *, step: int, **others: Any) -> StepReport:
        """As `Step.update`, or NonFiniteError."""
        _copy(self._before, self._statistics)
        try:
            report = self.engine.update(x, y, step=step, **others)
            self.engine.settle()
            self._refuse_gradients(step)
        except NonFiniteError:
            _copy(self._statistics, self._before)
            raise
        self.optimizer.step()
        return report

    def _refuse_gradients(self, step: int) -> None:
        gradients = [p.grad for p in self.engine.runner.parameters() if p.grad is not None]
        if self.engine.mesh.anywhere(not bool(get_total_norm(gradients).isfinite())):
            raise NonFiniteError(
                f"a gradient is not finite at step {step}, though all losses are; lower the learning rate or check "
                "the inputs."
            )


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        with torch.no_grad():
            copy_each(targets, sources)


def refuse_non_finite_weights(ensemble: Ensemble, *, epoch: int) -> None:
    """Stop where a member's weights are not finite, which finite losses can hide for a step.

    >>> from torch import nn
    >>> refuse_non_finite_weights(Ensemble(lambda: nn.Linear(2, 2), 2), epoch=0)
    """
    everything = [p.detach() for p in ensemble.parameters()]
    real = bool(everything) and all(p.is_floating_point() for p in everything)
    if real and bool(get_total_norm(everything).isfinite()):  # an infinite norm may be of large weights: look closer
        return
    weights = [(i, p.detach()) for i, member in enumerate(ensemble.members) for p in member.parameters()]
    finite = torch.stack([p.isfinite().all() for _, p in weights]) if weights else torch.ones(0, dtype=torch.bool)
    if not bool(finite.all()):  # the device is asked once
        member = weights[int((~finite).nonzero()[0])][0]
        raise NonFiniteError(
            f"weights of member {member} are not finite in epoch {epoch}, so training stopped; lower the learning "
            "rate, or give non_finite='skip' or 'roll_back'."
        )
