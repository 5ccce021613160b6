"""Members whose weights are the average over the steps of a training (EMA): less noise of the last steps.

After step t, with weights θ_t of a member and decay d:

    a_1 = θ_1,   a_t = d a_{t−1} + (1 − d) θ_t

Training goes on from θ; a is what is validated and what the ensemble ends as. Running statistics (BatchNorm) are
averaged in the same way, and counts are taken as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from forde.step import Step

log = logging.getLogger(__name__)

STILL_THERE = 0.05
"""From which weight of the first step on the average is said to be one of the beginning."""
FORGOTTEN = 0.01
"""Weight of the first step under the decay that is advised."""


class WeightAverage:
    """The average of the members that this process trains.

    Args:
        step: after whose updates it moves.
        decay: d.

    >>> from torch import nn
    >>> from forde import Ensemble, method
    >>> from forde.engine import make_engine
    >>> ensemble = Ensemble(lambda: nn.Linear(1, 2), 2)
    >>> average = WeightAverage(make_engine("eager", ensemble, method("deep-ensemble")), 0.75)
    >>> for number in (0.0, 4.0):
    ...     with torch.no_grad():
    ...         _ = ensemble.members[0].weight.fill_(number)
    ...     average.update()
    >>> float(average.tensors()["members.0.weight"][0])
    1.0
    """

    def __init__(self, step: Step, decay: float) -> None:
        self._step, self._blend = step, get_ema_multi_avg_fn(decay)
        first = step.first_member
        own = {f"members.{first + i}." for i in range(step.runner.ensemble.n_members)}
        tensors = step.whole.member_tensors()
        self._now = {name: t for name, t in tensors.items() if ".".join(name.split(".")[:2]) + "." in own}
        self._moving = [name for name, t in self._now.items() if t.is_floating_point() or t.is_complex()]
        self._average: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after a step into account."""
        now = {name: _wide(self._now[name].detach()) for name in self._moving}
        if not self._average:
            self._average = {name: tensor.clone() for name, tensor in now.items()}
        else:
            self._blend([self._average[name] for name in self._moving], [now[name] for name in self._moving], 0)

    def put(self) -> None:
        """Give all members their average."""
        _copy(self._step.mesh.united(self._average), self._step.whole.member_tensors())

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Inside, all members are their average."""
        own = self._step.whole.member_tensors()
        before = {name: tensor.detach().clone() for name, tensor in own.items()}
        self.put()
        try:
            yield
        finally:
            _copy(before, own)

    def tensors(self) -> dict[str, Tensor]:
        """Of all members, for a checkpoint; empty before the first step."""
        return self._step.mesh.united(self._average)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        there = {name: tensors[name] for name in self._moving} if tensors else {}
        self._average = {n: t.to(self._now[n].device, copy=True) for n, t in there.items()}


def say_if_too_slow(decay: float, steps: int | None) -> None:
    """One line where a run is too short for its average to forget the beginning.

    Args:
        steps: of the whole run; None where nobody knows.
    """
    if steps is None or (left := decay ** (steps - 1)) <= STILL_THERE:
        return
    log.warning(
        "ema=%g is slow for the %d steps of this run: the weights after the first step still make up %.0f %% of the "
        "average; ema=%.2g forgets them", decay, steps, 100 * left, FORGOTTEN ** (1 / steps),
    )  # fmt: skip


def _wide(tensor: Tensor) -> Tensor:
    """In float32 or better: a small share of a number of 16 bits would be lost."""
    return tensor.float() if tensor.itemsize < 4 and tensor.is_floating_point() else tensor


@torch.no_grad()
def _copy(values: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """In place, so that an engine that holds the members stacked sees it too."""
    for name, value in values.items():
        targets[name].copy_(value)
