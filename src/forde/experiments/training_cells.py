"""Training a cell's ensemble: in a run folder where it may be interrupted, and not beyond the time there is."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forde.ensemble import Ensemble
from forde.errors import RunInterruptedError
from forde.experiments.cell_methods import method_of
from forde.experiments.cells import Cell
from forde.experiments.estimates import seconds_of
from forde.experiments.places import Place
from forde.training import History, fit

SHORT = 300.0
"""Seconds below which a training on a GPU is not worth a run folder: it is started anew after an interruption."""
SAVING = 20.0
"""Seconds kept for the last checkpoint."""
MOST_NOTES = 20
TRAINING = "training"
"""The folder of the run inside the cell's own, which holds a lock besides."""


class OutOfTimeError(Exception):
    """The time is over; what was trained so far is in the cell's run folder."""


@dataclass
class Trained:
    """What a training took and said."""

    history: History
    seconds: float
    """Of all sessions."""
    notes: list[str]
    """Warnings, and what the engine said."""


def keeps_run(cell: Cell, place: Place) -> bool:
    """Whether the training writes checkpoints."""
    return not place.on_gpu or seconds_of(cell) > SHORT


def train(ensemble: Ensemble, cell: Cell, place: Place, data: Any, **options: Any) -> Trained:
    """Train as the cell says; goes on where an earlier session was stopped.

    Args:
        options: further arguments of `fit`.
    """
    stopper = _Stopper(cell, place)
    run: dict[str, Any] = {}
    if keeps_run(cell, place):
        # Nobody else reads what the run holds besides, so it says once more which cell it belongs to.
        run = {"run": place.runs / cell.name / TRAINING, "resume": True, "about": {"cell": cell.identity}, "keep": 1}
    started = time.perf_counter()
    with heard() as notes:
        try:
            history = fit(
                ensemble, method_of(cell), data, epochs=cell.epochs, batch_size=cell.batch_size, seed=cell.seed,
                device=place.device, engine=place.engine_for(cell.kind),  # type: ignore[arg-type]
                precision=cell.precision,  # type: ignore[arg-type]
                verbose=False, callback=stopper if run else None, **{"lr": cell.lr, **run, **options},
            )  # fmt: skip
        except RunInterruptedError:
            if stopper.stopped:
                raise OutOfTimeError from None
            raise
    seconds = time.perf_counter() - started
    earlier = sum(record.get("seconds", 0.0) for record in history.records[: len(history) - stopper.epochs])
    return Trained(history, seconds + (earlier if run else 0.0), notes)


def forget_run(cell: Cell, place: Place) -> None:
    """Delete the run folder, once the cell's result is safe."""
    shutil.rmtree(place.runs / cell.name, ignore_errors=True)


class _Stopper:
    """Called after each epoch: asks `fit` to stop where the next one would end too late."""

    def __init__(self, cell: Cell, place: Place) -> None:
        self.cell, self.place = cell, place
        self.stopped = False
        self.epochs = 0
        """Those of this session."""

    def __call__(self, record: dict[str, float]) -> None:
        self.epochs += 1
        last = record["epoch"] + 1 >= self.cell.epochs
        needed = 1.1 * record["seconds"] + (SAVING if self.place.on_gpu else 0.0)
        if not last and self.place.left < needed and self.place.can_stop:
            self.stopped = True
            signal.raise_signal(signal.SIGTERM)  # `fit` finishes a step, writes a checkpoint and says so


@contextmanager
def heard() -> Iterator[list[str]]:
    """Lines that forde logs inside: warnings, and which engine ran.

    >>> with heard() as notes:
    ...     logging.getLogger("forde.engine").info("engine: eager")
    >>> notes
    ['engine: eager']
    """
    notes: list[str] = []
    handler = _Keeping(notes.append)
    logger = logging.getLogger("forde")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    try:
        yield notes
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Keeping(logging.Handler):
    def __init__(self, keep: Callable[[str], None]) -> None:
        super().__init__()
        self.keep, self.left = keep, MOST_NOTES

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if self.left and (record.levelno >= logging.WARNING or line.startswith("engine:")):
            self.left -= 1
            self.keep(line)
