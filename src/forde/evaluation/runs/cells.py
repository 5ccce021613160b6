"""Test data and its corrupted versions as cells: what an evaluation of a run goes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from forde.corruptions import NAMES, SEVERITIES
from forde.data.corrupted_files import read_published
from forde.data.description import Images, Table
from forde.data.locating import data_folder
from forde.errors import FordeError, unknown_name
from forde.evaluation.robustness.cells import Cell, Data, cells_from, generated_cells
from forde.evaluation.robustness.fingerprints import fingerprint
from forde.evaluation.runs.table_shifts import SHIFTS, shifted

ALL = "all"


def checked_corruptions(data: Images | Table, asked: Sequence[str]) -> tuple[str, ...]:
    """The names asked for, `all` resolved; those of images are the 19 of `forde.corruptions`, those of tables SHIFTS.

    >>> from forde.data import load
    >>> checked_corruptions(load("classification-2d", "test"), ["all"])
    ('gaussian_noise', 'missing_values')
    """
    known = NAMES if isinstance(data, Images) else SHIFTS
    for name in asked:
        if name not in (*known, ALL):
            kind = "corruption of images" if isinstance(data, Images) else "shift of tables"
            raise unknown_name(kind, name, [*known, ALL])
    return tuple(known) if ALL in asked else tuple(dict.fromkeys(asked))


def checked_severities(asked: Sequence[int]) -> tuple[int, ...]:
    """The severities asked for, each from 1 to 5.

    >>> checked_severities([5, 1, 5])
    (1, 5)
    """
    for severity in asked:
        if severity not in SEVERITIES:
            raise FordeError(f"severity was {severity!r}; give an integer from 1 to 5.")
    return tuple(sorted(set(asked)))


def image_cells(
    clean: Images,
    names: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int,
    device: torch.device,
    data_dir: str | Path | None,
) -> tuple[list[Cell], dict[str, str]]:
    """Cells of corrupted images, published ones where they are in the data folder; and whence each corruption is.

    The published sets are whole test sets in their own order, so they serve only where the clean images are that set.
    """
    folder = data_folder(data_dir)
    published = {
        name for name in names
        if (found := read_published(clean.description.name, name, severities[0], folder)) is not None
        and np.array_equal(found.labels, clean.labels)
    }  # fmt: skip

    def load(name: str, severity: int) -> Data:
        found = read_published(clean.description.name, name, severity, folder)
        if found is None:
            raise FordeError(f"the published images of {name} at severity {severity} are missing; get them again.")
        return found.images, found.labels

    generated = [name for name in names if name not in published]
    images = torch.from_numpy(np.array(clean.images)).to(device)
    cells = [
        *cells_from(load, [name for name in names if name in published], severities),
        *generated_cells(images, torch.from_numpy(np.array(clean.labels)), generated, severities, seed=seed),
    ]
    sources = {cell.corruption: f"generated (seed {seed})" for cell in cells}
    return cells, sources | dict.fromkeys(published, "published")


def row_cells(
    rows: np.ndarray, y: np.ndarray, names: Sequence[str], severities: Sequence[int], seed: int
) -> list[Cell]:
    """Cells of shifted rows `[N, D]` in standard units.

    >>> cells = row_cells(np.zeros((3, 2), np.float32), np.arange(3), ["gaussian_noise"], [1, 2], seed=0)
    >>> [cell.name for cell in cells], cells[0].load()[0].shape
    (['gaussian_noise-1', 'gaussian_noise-2'], (3, 2))
    """
    content = fingerprint(rows, y, f"shift seed {seed}")
    cells = cells_from(lambda name, severity: (rows, y), names, severities, fingerprint=content)
    return [replace(cell, load=partial(_shifted, rows, y, cell.corruption, cell.severity, seed)) for cell in cells]


def _shifted(rows: np.ndarray, y: np.ndarray, name: str, severity: int, seed: int) -> Data:
    return shifted(rows, name, severity, seed=seed), y
