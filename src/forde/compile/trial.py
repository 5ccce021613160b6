"""Whether compiling pays within a run: a few plain steps on the clock, against what compiling takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from forde.step.records import StepReport

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
    return sum(SECONDS_TO_COMPILE * bool(list(module.parameters(recurse=False))) for module in network.modules())


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
