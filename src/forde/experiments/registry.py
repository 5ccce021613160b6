"""Experiments by name: one registered function per file of this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forde.errors import unknown_name
from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.outputs import Output

MakeCells = Callable[[Budget], Sequence[Cell]]


@dataclass(frozen=True)
class Experiment:
    """A table or figure: which cells it needs, and what is made of them."""

    name: str
    line: str
    """What `forde reproduce --list` shows."""
    cells: MakeCells
    outputs: tuple[Output, ...]


_EXPERIMENTS: dict[str, Experiment] = {}


def register(name: str, *outputs: Output) -> Callable[[MakeCells], MakeCells]:
    """Make an experiment known; the first line of the function's docstring is what `forde reproduce --list` shows.

    Args:
        outputs: what is made of its cells.
    """

    def add(cells: MakeCells) -> MakeCells:
        if name in _EXPERIMENTS:
            raise ValueError(f"the experiment '{name}' is there already")
        lines = (inspect.getdoc(cells) or "").splitlines()
        if not lines:
            raise ValueError(f"the experiment '{name}' needs a docstring: its first line is shown to users")
        _EXPERIMENTS[name] = Experiment(name, lines[0], cells, outputs)
        return cells

    return add


def experiments() -> dict[str, Experiment]:
    """Every registered experiment by name.

    >>> import forde.experiments
    >>> experiments()["table-cifar10"].line
    'Table 2: eleven methods on CIFAR-10, clean and corrupted.'
    """
    return dict(_EXPERIMENTS)


def experiment(name: str) -> Experiment:
    """An experiment by name.

    >>> import forde.experiments
    >>> experiment("table-cifar10").name
    'table-cifar10'
    """
    if name not in _EXPERIMENTS:
        raise unknown_name("experiment", name, _EXPERIMENTS)
    return _EXPERIMENTS[name]
