"""What commands that report have in common: the numbers as JSON, and text for people where it does not disturb them."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from forde._version import __version__
from forde.commands.console import plain_console
from forde.commands.options import STDOUT
from forde.durable import make_folder, write_whole
from forde.training.run_log import FOR_THE_FILE


def sayer(json_file: Path | None) -> Callable[[str], None]:
    """A function that prints for people: on stdout, or on stderr where stdout is to hold JSON alone.

    >>> sayer(None)("4 of 4 done")
    4 of 4 done
    """
    return partial(typer.echo, err=json_file == STDOUT)


def table_console(json_file: Path | None) -> Console:
    """Where tables are printed: on stderr where stdout is to hold JSON alone."""
    return plain_console(stderr=json_file == STDOUT)


class _Said(logging.Handler):
    """Hands lines that are not for a run's log alone to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, FOR_THE_FILE, False):
            self._say(record.getMessage())


@contextmanager
def epochs_said(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, the line of each epoch of a training, which there is without a terminal, is printed too."""
    watcher, handler = logging.getLogger("forde.training.watching"), _Said(say)
    watcher.addHandler(handler)
    try:
        yield
    finally:
        watcher.removeHandler(handler)


def write_report(command: str, content: Mapping[str, Any], json_file: Path | None) -> None:
    """Write `content` as JSON behind the command's name and the version; None for nowhere, `-` for stdout.

    A file is whole or as it was. A number that is not finite is null, as JSON has none.

    >>> write_report("compare", {"nll": {"value": float("nan"), "error": 0.5}}, Path("-"))  # doctest: +ELLIPSIS
    {
      "command": "forde compare",
      "forde": "...",
      "nll": {
        "value": null,
        "error": 0.5
      }
    }
    """
    if json_file is None:
        return
    text = json.dumps(as_json({"command": f"forde {command}", "forde": __version__, **content}), indent=2)
    if json_file == STDOUT:
        typer.echo(text)
        return
    make_folder(json_file.parent)
    write_whole(json_file, f"{text}\n".encode())


def as_json(value: Any) -> Any:
    """Numbers, text, lists and dictionaries of what commands find: named tuples, tensors, arrays and paths as well.

    >>> as_json({1: (float("inf"), Path("runs/a"))})
    {'1': [None, 'runs/a']}
    """
    if hasattr(value, "_asdict"):
        return as_json(value._asdict())
    if hasattr(value, "tolist"):  # a tensor, an array, or a number of numpy's
        return as_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
