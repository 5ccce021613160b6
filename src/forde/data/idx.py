"""The idx files of MNIST and Fashion-MNIST, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from forde.errors import FordeError

from .checks import check_is_file, check_same_length, checked_labels

_STEMS = {"train": "train", "test": "t10k"}
_BYTES = 0x08
"""The code for unsigned bytes in the third byte of the magic number."""
MAX_BYTES = 1 << 30
"""Twenty times MNIST."""


def read_idx_set(folder: Path, split: str, n_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[N, H, W, 1]` and labels `[N]`."""
    images_file = _find(folder, f"{_STEMS[split]}-images", "idx3-ubyte")
    labels_file = _find(folder, f"{_STEMS[split]}-labels", "idx1-ubyte")
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    check_same_length(len(images), len(labels), labels_file)
    return images[..., None], checked_labels(labels, n_classes, labels_file)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """One idx file of bytes with that many dimensions.

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
            if size > MAX_BYTES:
                raise FordeError(
                    f"'{path}' says that it holds {size:,} bytes, more than the {MAX_BYTES:,} allowed; get it again."
                )
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise FordeError(f"'{path}' is truncated or damaged; get it again.") from error
    if len(content) != size:
        kind = "truncated" if len(content) < size else "longer than its header says"
        raise FordeError(f"'{path}' is {kind}; get it again.")
    return np.frombuffer(content, np.uint8).reshape(shape).copy()


def _find(folder: Path, stem: str, ending: str) -> Path:
    for name in (f"{stem}-{ending}", f"{stem}.{ending}"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.exists():
                return path
    raise FordeError(f"the file '{folder / stem}-{ending}' (or .gz) is missing; get the data set again.")
