"""Result files of cells: written whole, rounded, checked when read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forde.durable import explaining_writes, make_folder, write_whole
from forde.errors import FordeError
from forde.experiments.cells import Cell
from forde.experiments.schema import problem_with

FORMAT = 1
DIGITS = 6
"""Significant digits that are kept."""


@dataclass(frozen=True)
class Result:
    """A finished cell and what came out."""

    cell: Cell
    content: dict[str, Any]


def path_of(cell: Cell, folder: Path) -> Path:
    """The cell's file in a folder of cells."""
    return folder / f"{cell.name}.json"


def write_result(cell: Cell, found: dict[str, Any], folder: Path) -> Path:
    """Write a cell's file, or say what is wrong with the result."""
    content = _plain({"format": FORMAT, "name": cell.name, "cell": cell.identity, **found})
    if (problem := problem_with(content)) is not None:
        raise FordeError(f"the result of {cell.name} does not fit the schema: {problem}.")
    with explaining_writes(folder, "free some space or make it writable, and run the same command again"):
        make_folder(folder)
        write_whole(path := path_of(cell, folder), (_json(content) + "\n").encode())
    return path


def read_result(path: Path) -> Result:
    """A cell's file, whose content is as the schema says and belongs to its name."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise FordeError(f"'{path}' is damaged or not JSON; delete it, and its cell is run again.") from None
    if (problem := problem_with(content)) is not None:
        raise FordeError(f"'{path}' is no result: {problem}; delete it, and its cell is run again.")
    try:
        cell = Cell.of(content["cell"])
        name = cell.name
    except (TypeError, ValueError, AttributeError):
        raise FordeError(f"'{path}' names no cell; delete it, and its cell is run again.") from None
    if name != path.stem:
        raise FordeError(f"'{path}' holds the cell {name}; restore its name, or delete it.")
    return Result(cell, content)


def results_in(folder: Path, cells: Iterable[Cell]) -> tuple[list[Result], list[str]]:
    """The results of these cells, of whichever seeds there are, and a sentence for each damaged file.

    In the order of the cells, then of the seeds.
    """
    order = {setting: index for index, setting in enumerate(dict.fromkeys(cell.setting for cell in cells))}
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            result = read_result(path)
        except FordeError as error:
            problems.append(str(error))
            continue
        if result.cell.setting in order:
            found.append(result)
    return sorted(found, key=lambda result: (order[result.cell.setting], result.cell.seed)), problems


def _plain(value: Any) -> Any:
    """JSON without NaN and with few digits."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return without_folders(value) if isinstance(value, str) else value


def _json(content: dict[str, Any]) -> str:
    """A line for each number that has a name, and one for each list of numbers."""
    return re.sub(r"\[[\s\d.,eE+-]+\]", lambda found: re.sub(r"\s+", " ", found[0]), json.dumps(content, indent=1))


def without_folders(text: str) -> str:
    """Absolute paths by their last part: results are shared, and say nothing of their author's disk.

    >>> without_folders("forde reproduce plan --data /home/me/data --out results/short")
    'forde reproduce plan --data data --out results/short'
    """
    return re.sub(r"(?<![\w.:/])/(?:[^\s/'\"]+/)*([^\s/'\"]+)", r"\1", text)
