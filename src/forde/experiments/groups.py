"""Results of cells that differ in their seed alone, and single numbers of them by name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from forde.experiments.cells import Cell
from forde.experiments.results import Result

NAMES = {
    "nll": "clean.nll", "accuracy": "clean.accuracy", "ece": "clean.ece", "cA": "pooled.accuracy", "cNLL": "pooled.nll",
    "cECE": "pooled.ece", "epistemic": "clean.epistemic", "step": "seconds.step",
}  # fmt: skip
"""Short names of numbers; any other is a path in the file, in which patterns stand for a mean."""
LOWER = {"nll", "ece", "cNLL", "cECE", "brier", "step"}
"""Numbers of which less is better."""


def lower_is_better(name: str) -> bool:
    """Whether less is better.

    >>> lower_is_better("cNLL"), lower_is_better("severities.5.accuracy")
    (True, False)
    """
    return name.rpartition(".")[2] in LOWER


def number(content: Mapping[str, Any], name: str) -> float | None:
    """A number of a result by its short name or path; the mean where a pattern names several, None where there is none.

    >>> number({"pooled": {"nll": 0.5}}, "cNLL")
    0.5
    >>> number({"corruptions": {"fog": {"1": {"nll": 1.0}, "2": {"nll": 3.0}}}}, "corruptions.fog.*.nll")
    2.0
    """
    found: list[Any] = [content]
    for part in NAMES.get(name, name).split("."):
        inside = [each for each in found if isinstance(each, Mapping)]
        found = [value for each in inside for key, value in each.items() if fnmatchcase(key, part)]
    numbers = [float(value) for value in found if isinstance(value, int | float)]
    return statistics.fmean(numbers) if numbers and len(numbers) == len(found) else None


@dataclass(frozen=True)
class Spread:
    """A mean over seeds."""

    mean: float
    std: float | None
    """None for one seed."""
    n: int

    @property
    def error(self) -> float | None:
        """Standard error of the mean."""
        return None if self.std is None else self.std / math.sqrt(self.n)


def spread(values: Iterable[float]) -> Spread | None:
    """Mean and standard deviation (n − 1), None of nothing.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, std=1.4142135623730951, n=2)
    """
    numbers = list(values)
    if not numbers:
        return None
    return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, len(numbers))


@dataclass
class Group:
    """One setting."""

    label: str
    cell: Cell
    """Of any of its seeds."""
    results: dict[int, Result] = field(default_factory=dict)
    """By seed."""

    def values(self, name: str) -> dict[int, float]:
        """A number by seed, where it is there."""
        found = {seed: number(result.content, name) for seed, result in sorted(self.results.items())}
        return {seed: value for seed, value in found.items() if value is not None}

    def spread(self, name: str) -> Spread | None:
        """Mean and deviation of a number over seeds."""
        return spread(self.values(name).values())


def grouped(results: Iterable[Result], label: Callable[[Cell], str]) -> dict[str, Group]:
    """Results by label, in the order in which the labels come.

    Cells of one label differ in their seed alone; the label must tell everything else apart.
    """
    found: dict[str, Group] = {}
    for result in results:
        name = label(result.cell)
        group = found.setdefault(name, Group(name, result.cell))
        if group.cell.setting != result.cell.setting:
            raise ValueError(f"two settings have the label '{name}': {group.cell.name} and {result.cell.name}")
        group.results[result.cell.seed] = result
    return found
