"""What forde logs during a run, also in a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: of a full disk the next checkpoint tells, not a traceback for each line."""


class _Onwards(logging.Handler):
    """Hands on to the root logger's handlers what they would have seen without the file."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().callHandlers(record)


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

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.txt"
    >>> with logged_to(path):
    ...     logging.getLogger("forde.training").info("hello")
    >>> path.read_text().split()[-1]
    'hello'
    """
    logger = logging.getLogger("forde")
    level, propagate, shown = logger.level, logger.propagate, logger.getEffectiveLevel()
    file = _LogFile(path, encoding="utf-8")
    file.setLevel(logging.INFO)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    onwards = _Onwards(shown)
    handlers = [file, onwards] if propagate else [file]
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(min(shown, logging.INFO))
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
