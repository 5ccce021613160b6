"""Running many cells: in order, in a time limit, one failing without the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from forde.data.catalogue import BUILT_IN
from forde.data.locating import data_folder, find
from forde.errors import FordeError
from forde.experiments.cells import Cell, unique
from forde.experiments.estimates import COMPILING, program_of, seconds_of
from forde.experiments.places import Place
from forde.experiments.running import Outcome, is_done, run_cell
from forde.experiments.training_cells import keeps_run
from forde.methods import methods

WORTHWHILE = 120.0
"""Seconds without which a training is not gone on with on a GPU: it has to be compiled again."""
Tell = Callable[[Outcome], None]


def runnable(cells: Iterable[Cell], place: Place) -> tuple[list[Cell], list[str]]:
    """The cells that can be run, each once, and a sentence for each reason why others cannot."""
    wanted, known = unique(cells), methods()
    reasons: list[str] = []
    unregistered = list(dict.fromkeys(cell.method for cell in wanted if cell.method not in known))
    if unregistered:
        reasons.append(f"no such method is registered: {', '.join(unregistered)}")
    wanted = [cell for cell in wanted if cell.method in known]
    missing: dict[str, str] = {}
    for cell in wanted:
        if cell.data not in missing and not is_done(cell, place):
            missing |= _missing_data(cell, place)
    reasons += missing.values()
    return [cell for cell in wanted if cell.data not in missing or is_done(cell, place)], reasons


def _missing_data(cell: Cell, place: Place) -> dict[str, str]:
    """Why the cell's data are not there, by the name of the data."""
    if cell.kind == "images" and cell.data not in BUILT_IN:
        try:
            find(cell.data, data_folder(place.data))
        except FordeError as error:
            return {cell.data: str(error)}
    if cell.kind == "features" and cell.data != "digits":
        name, _, backbone = cell.data.partition("@")
        folder = None if place.features is None else place.features / name
        if folder is None or not folder.is_dir():
            where = "a folder given as --features" if folder is None else f"'{folder}'"
            return {cell.data: f"features of {name} from {backbone} were expected in {where}; make them first."}
    return {}


def run_in_order(cells: Sequence[Cell], place: Place, tell: Tell) -> list[Outcome]:
    """Run cells one after another; those for which the time is too short are left."""
    outcomes: list[Outcome] = []
    for outcome in _in_order(cells, place):
        tell(outcome)
        outcomes.append(outcome)
    return outcomes


def _in_order(cells: Sequence[Cell], place: Place) -> Iterator[Outcome]:
    slower, compiled = 1.0, set[object]()
    for cell in cells:
        if is_done(cell, place):
            yield Outcome(cell, "there", "is there")
            continue
        program = program_of(cell)
        new = place.on_gpu and program is not None and program not in compiled
        expected = slower * seconds_of(cell) + (COMPILING if new else 0.0)
        needed = min(expected, WORTHWHILE) if keeps_run(cell, place) else expected
        if place.left <= 0 or place.left < (needed if place.on_gpu else 0.0):
            yield Outcome(cell, "left", f"would take about {expected:.0f} s")
            continue
        outcome = run_cell(cell, place)
        if outcome.status == "done" and place.on_gpu and not new:
            slower = outcome.seconds / seconds_of(cell)
        compiled.add(program)
        yield outcome


def run_in_processes(cells: Sequence[Cell], place: Place, jobs: int, tell: Tell) -> list[Outcome]:
    """Run cells in so many processes of this machine, which share its cores; several share a GPU."""
    try:
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ModuleNotFoundError:
        raise FordeError("--jobs needs joblib, which is not installed; run: pip install 'forde[cluster]'") from None
    threads = max(1, (os.cpu_count() or 1) // jobs)
    outcomes: dict[str, Outcome] = {}
    work = (delayed(_run_alone)(cell, replace(place, shared=True), threads) for cell in cells)
    try:
        for outcome in Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="n_jobs")(work):
            tell(outcome)
            outcomes[outcome.cell.name] = outcome
    except TerminatedWorkerError:
        for cell in cells:
            if cell.name not in outcomes:
                line = "a process was killed (too little memory?); run the same command again, with fewer --jobs"
                outcomes[cell.name] = Outcome(cell, "failed", line)
                tell(outcomes[cell.name])
    return list(outcomes.values())


def _run_alone(cell: Cell, place: Place, threads: int) -> Outcome:
    torch.set_num_threads(threads)
    if is_done(cell, place):
        return Outcome(cell, "there", "is there")
    expected = seconds_of(cell)
    if place.left <= (expected if place.on_gpu and not keeps_run(cell, place) else 0.0):
        return Outcome(cell, "left", f"would take about {expected:.0f} s")
    return run_cell(cell, place)
