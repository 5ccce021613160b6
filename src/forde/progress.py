"""A progress bar where somebody watches, on a terminal or in a notebook; silence where nobody does."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

EVERY = 0.2
"""Seconds between two pictures of a bar within a part."""


class Bar(Protocol):
    """What is drawn."""

    def update(self, done: float, note: str, left: float | None) -> None:
        """Show that so many parts are done, a note, and how many seconds the rest will take, if that is known."""


class Pace:
    """How long the rest will take, if it goes on as it has gone since the first part, which also warms everything up.

    Args:
        total: parts.
        done: of them, those that were done before.
        clock: tells the time.

    >>> times = iter([0.0, 30.0, 40.0, 45.0])
    >>> pace = Pace(total=10, clock=lambda: next(times))
    >>> pace.left(1.0), pace.left(2.0), pace.left(2.5)
    (270.0, 80.0, 75.0)
    """

    def __init__(self, total: float, done: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._since, self._began, self._first = done, clock(), done + 1

    def left(self, done: float) -> float | None:
        """Seconds; None where nothing was done yet."""
        now = self._clock()
        if done <= self._since:
            return None
        seconds = (self._total - done) * (now - self._began) / (done - self._since)
        if done >= self._first:
            self._since, self._began, self._first = done, now, float("inf")
        return seconds


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(75), duration(600), duration(5400)
    ('75 s', '10 min', '1.5 h')
    """
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def drawn_bar(total: int, title: str, *, show: bool) -> Iterator[Bar | None]:
    """A bar of `total` parts where somebody watches; None elsewhere, and where rich is not installed on a terminal.

    >>> with drawn_bar(2, "training", show=False) as bar:
    ...     bar is None
    True
    """
    if not show:
        yield None
    elif _in_notebook():
        yield _NotebookBar(total, title)
    elif sys.stderr.isatty():
        with _terminal_bar(total, title) as bar:
            yield bar
    else:
        yield None


@contextmanager
def progress_bar(total: int, title: str, *, show: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with a note after each of `total` parts; it draws a bar where somebody watches.

    >>> with progress_bar(2, "evaluating", show=False) as advance:
    ...     advance("fog 1")
    """
    pace, done = Pace(total), 0
    with drawn_bar(total, title, show=show) as bar:

        def advance(note: str) -> None:
            nonlocal done
            done += 1
            if bar is not None:
                bar.update(done, note, pace.left(done))

        yield advance


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
def _terminal_bar(total: int, title: str) -> Iterator[Bar | None]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text
    except ImportError:  # rich is optional; no work may depend on it
        yield None
        return

    class Drawn(Progress):
        """A line with the bar, and one with the note, which would find no place beside it."""

        note = ""

        def get_renderables(self) -> Iterator[Any]:
            yield from super().get_renderables()
            yield Text(self.note, no_wrap=True, overflow="ellipsis")

    title_count_left = [TextColumn("{task.fields[" + name + "]}", markup=False) for name in ("title", "count", "left")]
    console: Any = Console(file=_Lenient(sys.stderr), emoji=False)  # type: ignore[arg-type]
    with Drawn(title_count_left[0], BarColumn(), *title_count_left[1:], console=console, transient=True) as bar:
        task = bar.add_task("", total=total, title=title, count=f"0/{total}", left="")

        class Shown:
            def update(self, done: float, note: str, left: float | None) -> None:
                bar.note = note
                bar.update(task, completed=done, count=f"{int(done)}/{total}", left=_left(left))

        yield Shown()


class _NotebookBar:
    """In the output of a cell, with what every notebook has: no widgets."""

    def __init__(self, total: int, title: str) -> None:
        from IPython.display import display

        self._total, self._title = total, title
        self._handle: Any = display(self._content(0, "", None), raw=True, display_id=True)

    def update(self, done: float, note: str, left: float | None) -> None:
        self._handle.update(self._content(done, note, left), raw=True)

    def _content(self, done: float, note: str, left: float | None) -> dict[str, str]:
        text = "  ".join(filter(None, (self._title, f"{int(done)}/{self._total}", _left(left), note)))
        bar = f'<progress value="{done:.3f}" max="{self._total}" style="width: 12em"></progress>'
        return {"text/plain": text, "text/html": f"<div>{bar} <code>{html.escape(text)}</code></div>"}


def _left(seconds: float | None) -> str:
    return f"{duration(seconds)} left" if seconds else ""


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
