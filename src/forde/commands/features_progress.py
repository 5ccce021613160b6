"""How far `forde features` is: a bar on a terminal, else a line for each shard and each set, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer

from forde.commands.console import plain_console
from forde.data.features import FeatureSet, Watcher
from forde.data.features.folder import Step
from forde.progress import duration


class Teller:
    """Counts images, estimates the time left, and keeps a row for each set."""

    def __init__(self, sets: Sequence[FeatureSet], stop: Callable[[], bool]) -> None:
        self.rows: list[dict[str, Any]] = []
        """Of finished sets: part, file, images, seconds, and whether it was there."""
        self._sets, self._stop = sets, stop
        self._images = sum(one.n for one in sets)
        self._passed = self._new = self._counted = 0
        self._began = self._set_began = time.monotonic()
        self._part = ""
        self._bar: Callable[[], None] | None = None

    def watch(self, one: FeatureSet) -> Watcher:
        """For the next set."""
        self._part, self._counted, self._set_began = one.part, 0, time.monotonic()
        if not self._new:
            self._began = self._set_began
        return Watcher(self._stop, self._count, lambda n: self._say(f"{n:,} of {one.n:,} images saved"))

    def step(self, step: Step) -> None:
        """A set has ended."""
        if not step.done:
            return
        self._passed += step.set.n - self._counted  # of a set that was there nothing was counted
        self._counted = 0
        seconds = 0.0 if step.was_there else time.monotonic() - self._set_began
        self.rows.append(
            {"part": step.set.part, "file": str(step.path), "images": step.set.n, "seconds": round(seconds, 3)}
            | {"was_there": step.was_there}
        )
        self._part = step.set.part
        self._say("was there already" if step.was_there else f"{step.set.n:,} images, {seconds:.1f} s")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw a bar inside, where somebody watches."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        if not sys.stderr.isatty():
            with nullcontext():
                yield
            return
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        left = TextColumn("{task.fields[left]}", markup=False)
        with Progress(*columns, left, console=plain_console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=self._images, left="")
            self._bar = lambda: bar.update(task, completed=self._passed, description=self._part, left=self.left())
            try:
                yield
            finally:
                self._bar = None

    def left(self) -> str:
        """An estimate from the images computed so far."""
        if not self._new:
            return ""
        seconds = (self._images - self._passed) * (time.monotonic() - self._began) / self._new
        return f"about {duration(seconds)} left"

    def _count(self, n: int, new: bool) -> None:
        self._passed, self._counted, self._new = self._passed + n, self._counted + n, self._new + n * new
        if self._bar is not None:
            self._bar()

    def _say(self, what: str) -> None:
        if self._bar is not None:
            self._bar()
        else:
            left = f", {self.left()}" if self._new and self._passed < self._images else ""
            typer.echo(f"{self._part}: {what} ({len(self.rows)} of {len(self._sets)} sets{left})", err=True)


def summary(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    """One sentence for a folder that is complete.

    >>> summary(Path("features"), [{"images": 898, "was_there": True}, {"images": 899, "was_there": False}])
    '2 sets, 1,797 images, are in features (1 of them was there already)'
    """
    there = sum(bool(row["was_there"]) for row in rows)
    already = f" ({there} of them {'was' if there == 1 else 'were'} there already)" if there else ""
    images = sum(row["images"] for row in rows)
    return f"{len(rows)} sets, {images:,} images, are in {folder}{already}"
