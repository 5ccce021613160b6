"""A bar over the cells of an evaluation where somebody watches, silence where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cell_bar(total: int, *, show: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with a note on each finished cell; draws with rich on a terminal, else nothing."""
    if not (show and sys.stderr.isatty()):
        yield lambda note: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # rich is optional; evaluation must not depend on it
        yield lambda note: None
        return
    columns = (TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("evaluating", total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
