"""Whether compiling pays within a run on a CPU: from counts alone, so that the same call decides the same each time.

Compiled steps round differently. On a CPU everything that is seeded gives the same bits in every run on one machine, so
no clock may decide there. What compiling saves of stacked perceptrons grows with the numbers that their layers write:
1 to 6 ns for each of them and step, a tenth to two fifths of the time. Of convolutions no such rule is known: some gain
as much, others run slower (`docs/performance.md`), so `auto` does not compile them on a CPU.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forde.arguments import Input, called
from forde.random_state import get_random_state, set_random_state

FEWEST_STEPS = 500
"""Shorter runs are not even looked at."""
SAVED_PER_NUMBER = 1e-9
"""Seconds of a step, for each number that a layer with parameters writes; the least that was measured."""
SECONDS_PER_LAYER = 4.0
"""Of compiling, for each layer with parameters, on two cores."""
MARGIN = 2.0
"""How many times what compiling takes it must save."""


class Worth(NamedTuple):
    """What compiling would take and save in a run, in seconds."""

    cost: float
    saved: float

    @property
    def pays(self) -> bool:
        """Whether to compile.

        >>> Worth(cost=10, saved=30).pays, Worth(cost=10, saved=15).pays
        (True, False)
        """
        return self.saved > MARGIN * self.cost


def worth(network: nn.Module, n_members: int, x: Input, steps: int) -> Worth | None:
    """What compiling costs and saves in so many steps of members on batches like x; None for short runs.

    >>> network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> worth(network, 10, torch.zeros(100, 64), steps=10**6)
    Worth(cost=8.0, saved=110.0...)
    """
    if steps < FEWEST_STEPS:
        return None
    numbers = numbers_written(network, x)
    if numbers is None:
        return None
    layers = sum(bool(list(module.parameters(recurse=False))) for module in network.modules())
    return Worth(SECONDS_PER_LAYER * layers, steps * n_members * len(x) * numbers * SAVED_PER_NUMBER)


def numbers_written(network: nn.Module, x: Input) -> int | None:
    """How many numbers the layers with parameters return for one sample of x `[B, ...]`; None where one cannot tell.

    A copy of the network is run, so that nothing of the network itself changes.

    >>> numbers_written(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(5, 4))
    11
    """
    written: list[int] = []

    def count(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        written.append(output.numel() if isinstance(output, Tensor) else 0)

    random = get_random_state(x.device)
    try:
        own = copy.deepcopy(network).eval()
        for module in own.modules():
            if list(module.parameters(recurse=False)):
                module.register_forward_hook(count)
        with torch.no_grad():
            called(own, x[:1].clone())
    except Exception:  # what fails here fails in the first step, which says why
        return None
    finally:
        set_random_state(random)
    return sum(written)
