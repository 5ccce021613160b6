"""What forde logs during a run, also in a file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOR_THE_FILE = "for_the_file"
"""Attribute of a line that is for the run's log alone; `log.info(..., extra={FOR_THE_FILE: True})`."""


class _LogFile(logging.FileHandler):
    """The log of one run: lines of its own thread, and of threads that have no run of their own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.thread = threading.get_ident()
        self.setLevel(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what belongs to another run."""
        others = {file.thread for file in _redirected.files}
        return (record.thread == self.thread or record.thread not in others) and bool(super().filter(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore write errors here; the next checkpoint reports a full disk."""


class _Onwards(logging.Handler):
    """Hands on to the root logger's handlers what they would have seen without the file."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, FOR_THE_FILE, False):
            logging.getLogger().callHandlers(record)


class _Redirected:
    """The `forde` logger while runs in any number of threads write to files; it is put back when the last one ends."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: list[_LogFile] = []
        self.before: tuple[int, bool] = (logging.NOTSET, True)
        self.onwards: _Onwards | None = None

    def begin(self, file: _LogFile) -> None:
        logger = logging.getLogger("forde")
        with self.lock:
            if not self.files:
                shown = logger.getEffectiveLevel()
                self.before = logger.level, logger.propagate
                if logger.propagate:
                    self.onwards = _Onwards(shown)
                    logger.addHandler(self.onwards)
                logger.setLevel(min(shown, logging.INFO))
                logger.propagate = False
            self.files.append(file)
            logger.addHandler(file)

    def end(self, file: _LogFile) -> None:
        logger = logging.getLogger("forde")
        with self.lock:
            logger.removeHandler(file)
            self.files.remove(file)
            if not self.files:
                level, logger.propagate = self.before
                logger.setLevel(level)
                if self.onwards is not None:
                    logger.removeHandler(self.onwards)
                    self.onwards = None
        file.close()


_redirected = _Redirected()


@contextmanager
def silent() -> Iterator[None]:
    """Of the `forde` logger only errors are heard: in processes that only repeat what the first one says.

    >>> with silent():
    ...     logging.getLogger("forde.training").isEnabledFor(logging.WARNING)
    False
    """
    logger = logging.getLogger("forde")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Lines of the `forde` logger, from INFO on, go to a file too; the root logger's handlers see no more than before.

    Runs in several threads have a file each, with the lines of their own thread.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.txt"
    >>> with logged_to(path):
    ...     logging.getLogger("forde.training").info("hello")
    >>> path.read_text().split()[-1]
    'hello'
    """
    file = _LogFile(path)
    _redirected.begin(file)
    try:
        yield
    finally:
        _redirected.end(file)
