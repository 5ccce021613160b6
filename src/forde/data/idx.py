"""The idx files of MNIST and Fashion-MNIST, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from forde.data.checks import BLOCK, check_same_length, checked_labels
from forde.errors import FordeError
from forde.reading.budget import check_fits
from forde.reading.files import check_is_file

_STEMS = {"train": "train", "test": "t10k"}
_BYTES = 0x08
"""The code for unsigned bytes in the third byte of the magic number."""
_AS_LABELS = 12
"""Bytes that a label takes until it is an int64 that was checked."""


def read_idx_set(folder: Path, split: str, n_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[N, H, W, 1]` and labels `[N]`."""
    images_file = _find(folder, f"{_STEMS[split]}-images", "idx3-ubyte")
    labels_file = _find(folder, f"{_STEMS[split]}-labels", "idx1-ubyte")
    labels = read_idx(labels_file, 1)
    images = read_idx(images_file, 3, beside=_AS_LABELS * len(labels))
    check_same_length(len(images), len(labels), labels_file)
    return images[..., None], checked_labels(labels, n_classes, labels_file)


def read_idx(path: Path, dimensions: int, beside: int = 0) -> np.ndarray:
    """One idx file of bytes with that many dimensions; so many bytes of memory are already taken beside it.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    >>> read_idx(file, 1)
    array([7, 9], dtype=uint8)
    """
    check_is_file(path)
    try:
        # The header says how much to read, so that a small compressed file cannot unpack to fill the memory.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if magic != bytes([0, 0, _BYTES, dimensions]):
                raise FordeError(
                    f"'{path}' starts with {magic.hex() or 'nothing'}, but 0000080{dimensions} was expected of an idx "
                    "file; get it again."
                )
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            size = math.prod(shape)
            check_fits(size * (_AS_LABELS if dimensions == 1 else 1) + beside, path, [path])
            values = np.empty(size, np.uint8)
            found = _fill(file, values.data) + len(file.read(1))
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise FordeError(f"'{path}' is truncated or damaged; get it again.") from error
    if found != size:
        kind = "truncated" if found < size else "longer than its header says"
        raise FordeError(f"'{path}' is {kind}; get it again.")
    return values.reshape(shape)


def _fill(file: IO[bytes] | gzip.GzipFile, values: memoryview) -> int:
    """Read until the values are full or the file ends; returns how many bytes there were."""
    found = 0
    while found < len(values) and (block := file.read(min(BLOCK, len(values) - found))):
        values[found : found + len(block)] = block
        found += len(block)
    return found


def _find(folder: Path, stem: str, ending: str) -> Path:
    for name in (f"{stem}-{ending}", f"{stem}.{ending}"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.exists():
                return path
    raise FordeError(f"the file '{folder / stem}-{ending}' (or .gz) is missing; get the data set again.")
