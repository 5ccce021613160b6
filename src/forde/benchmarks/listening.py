"""What engines say while they start: which one `"auto"` chose, or that a compiled one went back to the plain loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Keep(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("engine:"):
            self.lines.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """Lines that forde's engines log meanwhile.

    >>> with listening() as lines:
    ...     logging.getLogger("forde.compile.step").info("engine: eager")
    >>> lines
    ['engine: eager']
    """
    logger = logging.getLogger("forde")
    lines: list[str] = []
    handler, level = _Keep(lines), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
