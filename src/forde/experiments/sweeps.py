"""Running many cells: in order, in a time limit, one failing without the others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

from forde.experiments.cells import Cell, unique
from forde.experiments.estimates import seconds_of
from forde.experiments.places import Place
from forde.experiments.running import Outcome, is_done, run_cell
from forde.experiments.training_cells import keeps_run
from forde.methods import methods

COMPILING = 30.0
"""Seconds that the first cell of its kind takes longer on a GPU."""
WORTHWHILE = 120.0
"""Seconds without which a training is not gone on with on a GPU: it has to be compiled again."""


def runnable(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells whose methods are registered, each once, and the methods that are not."""
    known = methods()
    missing = list(dict.fromkeys(cell.method for cell in cells if cell.method not in known))
    return unique(cell for cell in cells if cell.method in known), missing


def run_in_order(cells: Sequence[Cell], place: Place, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Run cells one after another; those for which the time is too short are left."""
    outcomes: list[Outcome] = []
    for outcome in _outcomes(cells, place):
        tell(outcome)
        outcomes.append(outcome)
        gc.collect()
    return outcomes


def _outcomes(cells: Sequence[Cell], place: Place) -> Iterator[Outcome]:
    slower, compiled = 1.0, set[object]()
    for cell in cells:
        if is_done(cell, place):
            yield Outcome(cell, "there", "is there")
            continue
        program = cell.model, cell.members, cell.method, dict(cell.options).get("repulsion_fraction")
        new = place.on_gpu and program not in compiled
        expected = slower * seconds_of(cell) + (COMPILING if new else 0.0)
        needed = min(expected, WORTHWHILE) if keeps_run(cell, place) else expected
        if place.left < (needed if place.on_gpu else 0.0):
            yield Outcome(cell, "left", f"would take about {expected:.0f} s")
            continue
        outcome = run_cell(cell, place)
        if outcome.status == "done" and place.on_gpu and not new:
            slower = outcome.seconds / seconds_of(cell)
        compiled.add(program)
        yield outcome
