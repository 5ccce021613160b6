"""Cells of a robustness evaluation, (corruption, severity) → data, and where they come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from forde._version import __version__
from forde.corruptions import NAMES, SEVERITIES, corrupt, frost_name
from forde.errors import FordeError
from forde.evaluation.robustness.fingerprints import fingerprint

Images = np.ndarray | Tensor
Data = tuple[Images, Images]
"""uint8 images `[N, H, W, C]` or `[N, H, W]`, and labels `[N]`."""

CLEAN = "clean"


@dataclass(frozen=True)
class Cell:
    """One corruption at one severity, whose data are loaded when needed."""

    corruption: str
    severity: int
    load: Callable[[], Data]
    fingerprint: str = ""
    """Names the data; with it a finished cell is not even loaded. Without it the data are loaded and fingerprinted."""

    @property
    def name(self) -> str:
        """For files and tables, `fog-3`; `clean` for clean data."""
        return cell_name(self.corruption, self.severity)


def cell_name(corruption: str, severity: int) -> str:
    """What a cell is called in files and tables.

    >>> cell_name("fog", 3), cell_name("clean", 0)
    ('fog-3', 'clean')
    """
    return CLEAN if corruption == CLEAN else f"{corruption}-{severity}"


def clean_cell(images: Images, labels: Images) -> Cell:
    """The cell of uncorrupted data, severity 0.

    >>> clean_cell(np.zeros((2, 8, 8), np.uint8), np.array([0, 1])).name
    'clean'
    """
    return Cell(CLEAN, 0, lambda: (images, labels))


def cells_from(
    load: Callable[[str, int], Data],
    names: Iterable[str],
    severities: Iterable[int] = SEVERITIES,
    *,
    fingerprint: str = "",
) -> list[Cell]:
    """Cells from a function `(name, severity) → (images, labels)`; `fingerprint` names the set they belong to.

    >>> images, labels = np.zeros((2, 8, 8), np.uint8), np.array([0, 1])
    >>> [cell.name for cell in cells_from(lambda name, severity: (images, labels), ["fog"], [1, 5])]
    ['fog-1', 'fog-5']
    """
    levels = list(severities)
    return [
        Cell(name, severity, partial(load, name, severity), fingerprint and f"{fingerprint} {name} {severity}")
        for name in names
        for severity in levels
    ]


def generated_cells(
    images: Images,
    labels: Images,
    names: Iterable[str] = NAMES,
    severities: Iterable[int] = SEVERITIES,
    *,
    seed: int = 0,
    preset: str | None = None,
    frost: str | os.PathLike[str] | None = None,
) -> list[Cell]:
    """Cells that corrupt clean uint8 images `[N, H, W, C]` when loaded, on the device the images are on.

    >>> cells = generated_cells(np.zeros((2, 32, 32, 3), np.uint8), np.array([0, 1]), ["fog"], [3])
    >>> cells[0].load()[0].shape
    (2, 32, 32, 3)
    """
    content = fingerprint(
        images, labels, f"seed {seed} preset {preset} {frost_name(frost)} {frost or ''} forde {__version__}"
    )

    def load(name: str, severity: int) -> Data:
        return corrupt(images, name, severity, seed=seed, preset=preset, frost=frost), labels  # type: ignore[type-var]

    cells = cells_from(load, names, severities, fingerprint=content)
    # Results must say when frost was made without photographs.
    return [replace(cell, corruption=frost_name(frost)) if cell.corruption == "frost" else cell for cell in cells]


def as_tensor(images: Images) -> Tensor:
    """Images or labels as a tensor, copied only if they must be.

    >>> as_tensor(np.zeros(2, np.uint8))
    tensor([0, 0], dtype=torch.uint8)
    """
    # torch warns of arrays that it could write to but must not, as those of memory-mapped files.
    return torch.from_numpy(np.require(images, requirements="W")) if isinstance(images, np.ndarray) else images


def unique_names(cells: Sequence[Cell]) -> None:
    """Refuse two cells of one name, which would share a file and count double."""
    names = [cell.name for cell in cells]
    if twice := {name for name in names if names.count(name) > 1}:
        raise FordeError(f"the cell '{min(twice)}' was given twice; give each corruption and severity once.")
