"""Running one cell to its result file."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from forde.benchmarks.machine import machine
from forde.durable import make_folder
from forde.errors import FordeError, RunInterruptedError, first_line
from forde.experiments.cells import Cell
from forde.experiments.feature_cells import run_features
from forde.experiments.image_cells import run_images
from forde.experiments.places import Place
from forde.experiments.results import path_of, read_result, write_result
from forde.experiments.toy_cells import run_toy
from forde.experiments.training_cells import OutOfTimeError, forget_run
from forde.folder_lock import locked
from forde.training.git_state import git_state

Status = Literal["done", "there", "failed", "interrupted", "busy", "left"]

COMMIT = "FORDE_COMMIT"
"""Environment variable: what to note as commit where the current folder is no git repository."""

RUNNERS: dict[str, Callable[[Cell, Place], dict[str, Any]]] = {
    "images": run_images, "features": run_features, "regression-1d": run_toy, "classification-2d": run_toy,
}  # fmt: skip
"""What runs a cell of a kind."""


@dataclass(frozen=True)
class Outcome:
    """How a cell's turn ended."""

    cell: Cell
    status: Status
    line: str
    """For people."""
    seconds: float = 0.0


def is_done(cell: Cell, place: Place) -> bool:
    """Whether the cell's file is there and whole; a damaged one is put aside, so that nothing is lost."""
    path = path_of(cell, place.cells)
    if not path.exists():
        return False
    try:
        read_result(path)
    except FordeError:
        path.replace(path.with_suffix(".damaged"))
        return False
    return True


def run_cell(cell: Cell, place: Place) -> Outcome:
    """Train and evaluate a cell unless its file is there; an error becomes an outcome, so that others go on."""
    if is_done(cell, place):
        return Outcome(cell, "there", "is there")
    started, folder = time.perf_counter(), place.runs / cell.name
    with ExitStack() as stack:
        try:
            make_folder(folder)
            stack.enter_context(locked(folder))
        except (FordeError, OSError) as error:
            return Outcome(cell, "busy", str(error))
        try:
            if is_done(cell, place):  # by the process that held the folder until now
                return Outcome(cell, "there", "is there")
            found = RUNNERS[cell.kind](cell, place)
            write_result(cell, {**found, "run": circumstances(cell, place)}, place.cells)
        except OutOfTimeError:
            return Outcome(cell, "interrupted", "goes on from its checkpoint next time", _since(started))
        except RunInterruptedError as error:  # somebody wants the whole command to end
            line = f"stopped by {error.signal.name}; {cell.name} is saved, run the same command again to go on."
            raise RunInterruptedError(line, error.signal) from None
        except FordeError as error:
            return Outcome(cell, "failed", str(error), _since(started))
        except Exception as error:  # one cell's mistake must not end the others
            file = folder / "error.txt"
            with suppress(OSError):
                file.write_text(traceback.format_exc(), encoding="utf-8")
            line = f"{type(error).__name__}: {first_line(error)}; all of it is in '{file}'"
            return Outcome(cell, "failed", line, _since(started))
    forget_run(cell, place)
    return Outcome(cell, "done", summary(found), _since(started))


def circumstances(cell: Cell, place: Place) -> dict[str, Any]:
    """Where, when and with what a result was made."""
    git = git_state() or {}
    return {
        "budget": place.budget,
        "seed": cell.seed,
        "device": "cpu" if cell.kind in ("regression-1d", "classification-2d") else place.device,
        "engine": place.engine_for(cell.kind),
        "machine": machine(),
        "commit": git.get("commit") or os.environ.get(COMMIT),
        "dirty": git.get("dirty"),
        "command": place.command,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def summary(found: dict[str, Any]) -> str:
    """One line of a result.

    >>> summary({"clean": {"accuracy": 0.9, "nll": 0.3}, "pooled": {"accuracy": 0.7, "nll": 0.9}})
    'acc 0.900, nll 0.300, cA 0.700, cNLL 0.900'
    """
    words = []
    for part, names in (("clean", ("acc", "nll")), ("pooled", ("cA", "cNLL"))):
        if part in found:
            words += [f"{names[0]} {found[part]['accuracy']:.3f}", f"{names[1]} {found[part]['nll']:.3f}"]
    return ", ".join(words) or "finished"


def _since(started: float) -> float:
    return time.perf_counter() - started
