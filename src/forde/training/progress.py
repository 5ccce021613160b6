"""A progress bar where somebody watches, silence where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forde.training.history import Record

Advance = Callable[[Record], None]


@contextmanager
def progress_bar(epochs: int, title: str, *, show: bool) -> Iterator[Advance]:
    """Yields a function to call with each epoch's record; draws with rich on a terminal, else nothing."""
    if not (show and sys.stderr.isatty()):
        yield lambda record: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # rich is optional; training must not depend on it
        yield lambda record: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=epochs, note="")

        def advance(record: Record) -> None:
            bar.update(task, advance=1, note=f"loss {record['loss']:.3f}  repulsion {record['repulsion']:+.4f}")

        yield advance
