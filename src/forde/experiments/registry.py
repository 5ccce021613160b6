"""Experiments by name: one registered function per file of this package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forde.errors import unknown_name
from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim
from forde.experiments.outputs import Output
from forde.experiments.paper import label_of

MakeCells = Callable[[Budget], Sequence[Cell]]


@dataclass(frozen=True)
class Experiment:
    """A table or figure: which cells it needs, and what is made of them."""

    name: str
    line: str
    """What `forde reproduce --list` shows."""
    cells: MakeCells
    outputs: tuple[Output, ...]
    claims: tuple[Claim, ...]
    """Checked for each data set by itself."""
    label: Callable[[Cell], str]
    """What a setting is called in its tables, figures and claims."""


_EXPERIMENTS: dict[str, Experiment] = {}


def register(
    name: str, *outputs: Output, claims: Sequence[Claim] = (), label: Callable[[Cell], str] = label_of
) -> Callable[[MakeCells], MakeCells]:
    """Make an experiment known; the first line of the function's docstring is what `forde reproduce --list` shows.

    Args:
        outputs: what is made of its cells.
        claims: what its cells can tell true from false.
        label: of a cell's setting; must tell apart all but seeds and data sets.
    """

    def add(cells: MakeCells) -> MakeCells:
        if name in _EXPERIMENTS:
            raise ValueError(f"the experiment '{name}' is there already")
        lines = (inspect.getdoc(cells) or "").splitlines()
        if not lines:
            raise ValueError(f"the experiment '{name}' needs a docstring: its first line is shown to users")
        _EXPERIMENTS[name] = Experiment(name, lines[0], cells, outputs, tuple(claims), label)
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
    >>> experiment("fig-1d").name
    'fig-1d'
    """
    if name not in _EXPERIMENTS:
        raise unknown_name("experiment", name, _EXPERIMENTS)
    return _EXPERIMENTS[name]
