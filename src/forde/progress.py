"""A progress bar where somebody watches, silence where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class _Lenient:
    """A terminal that may be closed while work goes on: what cannot be shown is left out."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
    title_and_bar = (TextColumn("{task.description}", markup=False), BarColumn())
    columns = (*title_and_bar, MofNCompleteColumn(), TimeRemainingColumn())
    note = TextColumn("{task.fields[note]}", markup=False)
    console: Any = Console(file=_Lenient(sys.stderr), emoji=False)  # type: ignore[arg-type]
    with Progress(*columns, note, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
