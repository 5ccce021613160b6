"""Whether compiling pays within a run: on a GPU a few plain steps tell, on a CPU counts alone.

Compiled steps round differently. On a CPU everything that is seeded gives the same bits in every run on one machine, so
no clock may decide there. What compiling saves of stacked perceptrons grows with the numbers that their layers write:
1 to 6 ns for each of them and step, a tenth to two fifths of the time. Of convolutions no such rule is known: some gain
as much, others run slower (`docs/performance.md`), so `auto` does not compile them on a CPU.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forde.arguments import Input, called
from forde.random_state import get_random_state, set_random_state
from forde.step.records import StepReport

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
    return Worth(
        SECONDS_PER_LAYER * layers_with_parameters(network), steps * n_members * len(x) * numbers * SAVED_PER_NUMBER
    )


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


STEPS = 3
SAVED_SHARE = 0.6
"""Of a plain step's time, what a compiled one saves at least."""
SECONDS_TO_COMPILE = 1.5
"""For each layer with parameters: 63 s for ResNet18 under FoRDE, on 16 cores."""


class Trial:
    """Times the first steps of a run.

    Args:
        steps: how many the run will have.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taken: list[float] = []

    @property
    def over(self) -> bool:
        """Whether enough steps were timed."""
        return len(self.taken) >= STEPS

    def time(self, step: Callable[[], StepReport], device: torch.device) -> StepReport:
        """Make a step, and note how long it took."""
        _wait_for(device)
        started = time.perf_counter()
        report = step()
        _wait_for(device)
        self.taken.append(time.perf_counter() - started)
        return report

    def saved(self) -> float:
        """Seconds that compiled steps would save in the rest of the run.

        >>> trial = Trial(steps=103)
        >>> trial.taken = [0.5, 0.1, 0.1]
        >>> trial.saved()
        6.0
        """
        return (self.steps - len(self.taken)) * statistics.median(self.taken) * SAVED_SHARE


def seconds_to_compile(network: nn.Module) -> float:
    """What compiling takes, roughly.

    >>> seconds_to_compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    3.0
    """
    return SECONDS_TO_COMPILE * layers_with_parameters(network)


def layers_with_parameters(network: nn.Module) -> int:
    """How many layers a compiler has to work on.

    >>> layers_with_parameters(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    2
    """
    return sum(bool(list(module.parameters(recurse=False))) for module in network.modules())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
