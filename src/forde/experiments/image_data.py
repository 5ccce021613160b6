"""Image data of cells, loaded and corrupted once per process."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from forde.corruptions import NAMES, corrupt, frost_name
from forde.data import corrupted, load_images
from forde.data.corrupted_files import read_published
from forde.data.description import Images
from forde.data.locating import data_folder
from forde.evaluation.robustness import Cell as Corrupted
from forde.experiments.cells import Cell
from forde.experiments.places import Place
from forde.hashing import array_name

IN_MEMORY = 2**30
"""Bytes of corrupted images that are kept in a computer's memory; more are kept on its disk."""
SHARE_OF_FREE = 0.25
"""Of a GPU's free memory, for corrupted images."""


class TestSets(NamedTuple):
    """Clean and corrupted test images."""

    images: Tensor
    """uint8 `[N, H, W, C]` on the device."""
    labels: np.ndarray
    """`[N]`."""
    corrupted: tuple[Corrupted, ...]
    source: str
    """Whence the corrupted ones are."""


def training_images(cell: Cell, place: Place) -> Images:
    """The training images of a cell."""
    return first(_load(cell.data, "train", place.data), cell.train_size)


def test_sets(cell: Cell, place: Place) -> TestSets:
    """The clean and the corrupted test images of a cell, the same objects whenever a process asks for them."""
    wanted = _Wanted(cell.data, place.data, cell.test_size, cell.corruptions or NAMES, cell.severities)
    return _test_sets(wanted, place.device)


class _Wanted(NamedTuple):
    data: str
    folder: Path | None
    size: int | None
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]


def first(images: Images, size: int | None) -> Images:
    """The first so many images.

    >>> len(first(load_images("digits"), 10))
    10
    """
    if size is None or size >= len(images):
        return images
    return replace(images, images=images.images[:size], labels=images.labels[:size])


@lru_cache(maxsize=4)
def _load(name: str, split: str, folder: Path | None) -> Images:
    return load_images(name, split, folder)


@lru_cache(maxsize=4)
def data_print(name: str, folder: Path | None) -> str:
    """A short name for the training data, which tells JPEG copies from lossless ones."""
    data = _load(name, "train", folder)
    return array_name(data.images, data.labels)


@lru_cache(maxsize=2)
def _test_sets(wanted: _Wanted, device: str) -> TestSets:
    name, folder, size, corruptions, severities = wanted
    clean = first(_load(name, "test", folder), size)
    images = torch.from_numpy(np.ascontiguousarray(clean.images)).to(device)
    published = read_published(name, corruptions[0], severities[0], data_folder(folder)) is not None
    keep = images.nbytes * len(corruptions) * len(severities) <= _room(torch.device(device))
    kept: dict[tuple[str, int], Tensor | np.ndarray] = {}

    def load(corruption: str, severity: int) -> tuple[Tensor | np.ndarray, np.ndarray]:
        key = corruption, severity
        if key in kept:
            return kept[key], clean.labels
        found: Tensor | np.ndarray
        if published or not keep:
            found = first(corrupted(name, corruption, severity, data_dir=folder), size).images
            found = torch.from_numpy(np.ascontiguousarray(found)).to(device) if keep else found
        else:
            found = corrupt(images, corruption, severity, seed=0)
        if keep:
            kept[key] = found
        return found, clean.labels

    def shown(corruption: str) -> str:
        return frost_name() if corruption == "frost" and not published else corruption

    cells = [
        Corrupted(shown(corruption), severity, partial(load, corruption, severity))
        for corruption in corruptions
        for severity in severities
    ]
    return TestSets(images, clean.labels, tuple(cells), "published" if published else "generated (seed 0)")


def _room(device: torch.device) -> float:
    """Bytes that corrupted images may take."""
    if device.type == "cuda":
        return SHARE_OF_FREE * torch.cuda.mem_get_info(device)[0]
    return IN_MEMORY
