"""A progress bar where somebody watches, silence where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, title: str, *, show: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with a note after each of `total` parts; draws with rich on a terminal, else nothing.

    >>> with progress_bar(2, "training", show=False) as advance:
    ...     advance("loss 0.5")
    """
    if not (show and sys.stderr.isatty()):
        yield lambda note: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # rich is optional; no work may depend on it
        yield lambda note: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
