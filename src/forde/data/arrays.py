"""Data sets from arrays in memory and from `.npz` files."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forde.data.checks import (
    channel_statistics,
    check_class_names,
    check_same_length,
    checked_labels,
    column_statistics,
    count_classes,
)
from forde.data.description import Description, Images, Table
from forde.errors import FordeError, unknown_name
from forde.reading.budget import check_fits
from forde.reading.files import MAX_SHOWN, check_is_file

_PAIRS = (("x", "y"), ("images", "labels"), ("data", "labels"), ("X", "y"))
MAX_HEADER = 1 << 20
"""Bytes before the values of an array; numpy would read a header of any length."""
_SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}


def from_arrays(
    x: np.ndarray, y: Sequence[int] | np.ndarray, *, name: str = "arrays", classes: Sequence[str] = ()
) -> Images | Table:
    """A data set from arrays: images uint8 `[N, H, W, C]` or `[N, H, W]`, or a table of numbers `[N, D]`.

    For images and whole-number targets `y [N]` are classes 0..K − 1, for a table decimals are quantities.

    >>> data = from_arrays(np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 2, 1])
    >>> data.images.shape, data.description.n_classes
    ((4, 8, 8, 3), 3)
    """
    return _from_parts({"train": (np.asarray(x), np.asarray(y))}, "train", name, "arrays in memory", classes)


def read_npz(path: Path, split: str) -> Images | Table:
    """A split of a `.npz` file with x and y, images and labels, or these per split (x_train, train_images, ...)."""
    check_is_file(path)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            names = _array_names(file.files, path)
            check_fits(sum(_need(file.zip, a, b, path) for a, b in names.values()), path, [path])
            parts = {part: (file[a], file[b]) for part, (a, b) in names.items()}
    except FordeError:
        raise
    except Exception as error:  # a broken file can raise anything, from zlib.error to RecursionError
        raise _broken(path) from error
    return _from_parts(parts, split, path.stem, f"the file '{path}'")


def read_npz_inputs(path: Path) -> np.ndarray:
    """The images of a `.npz` file without looking at targets: its array x, images, data or X, uint8 `[N, H, W, C]`."""
    check_is_file(path)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            name = next((name for name in dict.fromkeys(x for x, _ in _PAIRS) if name in file.files), None)
            if name is None:
                there = ", ".join(sorted(file.files))[:MAX_SHOWN] or "none"
                raise FordeError(f"'{path}' holds the arrays {there}, but x or images was expected; rename one.")
            shape, _, dtype = _header(file.zip, name, path)
            check_fits(2 * math.prod(shape) * dtype.itemsize, path, [path])
            return _as_images(file[name], f"the file '{path}'")
    except FordeError:
        raise
    except Exception as error:  # as in `read_npz`
        raise _broken(path) from error


def _broken(path: Path) -> FordeError:
    return FordeError(
        f"'{path}' is truncated, not a .npz file, or holds Python objects instead of numbers; write it again with "
        "numpy.savez."
    )


def _need(archive: zipfile.ZipFile, x_name: str, y_name: str, path: Path) -> int:
    """The bytes of memory that the samples and targets of one split take until they are a data set."""
    shape, fortran, dtype = _header(archive, x_name, path)
    values = math.prod(shape) * dtype.itemsize
    if len(shape) == 2:
        # As float32 with a mask of what is finite; statistics of a column in float64; a name and two numbers a column.
        values += 5 * math.prod(shape) + 16 * shape[0] + 250 * shape[1]
    elif fortran:
        values *= 2  # statistics go through the pixels in the order of C
    shape, _, dtype = _header(archive, y_name, path)
    return values + math.prod(shape) * (dtype.itemsize + 24)  # int64 twice, and masks of what is out of range


def _header(archive: zipfile.ZipFile, name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array of a `.npz` file, without its values."""
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("a compression that numpy does not write")  # some reserve as much as the file says
    with archive.open(member) as stream:
        old = np.lib.format.read_magic(stream) == (1, 0)
        size = struct.unpack("<H" if old else "<I", stream.read(2 if old else 4))[0]
        if size > MAX_HEADER:
            raise FordeError(
                f"the array '{name}' in '{path}' has a header of {size:,} bytes, but {MAX_HEADER:,} are the most; "
                "write it again with numpy.savez."
            )
    with archive.open(member) as stream:
        np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError("objects, or more values claimed than stored")  # numpy would reserve what the header claims
    return shape, fortran, dtype


def _array_names(names: Sequence[str], path: Path) -> dict[str, tuple[str, str]]:
    """Split → the names of its two arrays."""
    found: dict[str, tuple[str, str]] = {}
    for x, y in _PAIRS:
        for split, spellings in _SPLITS.items():
            for spelling in spellings:
                for pair in ((f"{x}_{spelling}", f"{y}_{spelling}"), (f"{spelling}_{x}", f"{spelling}_{y}")):
                    if set(pair) <= set(names):
                        found.setdefault(split, pair)
        if {x, y} <= set(names):
            found.setdefault("train", (x, y))
    if not found:
        there = ", ".join(sorted(names))[:MAX_SHOWN] or "none"
        raise FordeError(
            f"'{path}' holds the arrays {there}, but x and y, images and labels, or these per split (x_train, y_train, "
            "...) were expected."
        )
    return found


def _from_parts(
    parts: Mapping[str, tuple[np.ndarray, np.ndarray]],
    split: str,
    name: str,
    source: str,
    classes: Sequence[str] = (),
) -> Images | Table:
    if split not in parts:
        raise unknown_name(f"split of {source}", split, parts)
    check_class_names(classes, source)
    x, y = parts[split]
    if not all(own.ndim and own.size and own.dtype.kind in "biuf" for _, own in parts.values()):
        raise FordeError(f"the targets in {source} are empty or of type {y.dtype}; give one number for each sample.")
    sizes = {part: len(own) for part, (_, own) in parts.items()}
    if x.ndim == 2:
        return _table(parts, split, sizes=sizes, name=name, source=source, classes=classes)
    images, training = (_as_images(parts[part][0], source) for part in (split, "train" if "train" in parts else split))
    check_same_length(len(images), len(y), source)
    n_classes = len(classes) or count_classes((own for _, own in parts.values()), source)
    mean, std = channel_statistics(training)
    labels = checked_labels(y, n_classes, source)
    names = tuple(classes) or tuple(map(str, range(n_classes)))
    return Images(
        images, labels, Description(name, n_classes, images.shape[1:], mean, std, sizes, source, names), source
    )


def _as_images(x: np.ndarray, source: str) -> np.ndarray:
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or x.shape[-1] not in (1, 3) or not x.size:
        raise FordeError(
            f"the images in {source} have shape {x.shape}, but (N, H, W, C) with 1 or 3 channels last was expected; "
            "move the axes."
        )
    if x.dtype != np.uint8:
        raise FordeError(f"the images in {source} are {x.dtype}, but uint8 levels 0..255 were expected; convert them.")
    return x


def _table(
    parts: Mapping[str, tuple[np.ndarray, np.ndarray]],
    split: str,
    *,
    sizes: dict[str, int],
    name: str,
    source: str,
    classes: Sequence[str],
) -> Table:
    x, y = parts[split]
    training = parts.get("train", parts[split])[0]
    if x.dtype.kind not in "biuf" or training.dtype.kind not in "biuf" or y.ndim != 1:
        raise FordeError(
            f"{source} has features of type {x.dtype} and targets of shape {y.shape}; numbers and one target "
            "a row were expected."
        )
    check_same_length(len(x), len(y), source)
    if training.ndim != 2 or not len(training) or training.shape[1] != x.shape[1]:
        raise FordeError(
            f"the training features in {source} have shape {training.shape}, unlike {x.shape}; get it again."
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        features = x.astype(np.float32)
    if not np.isfinite(features).all():
        raise FordeError(
            f"the features in {source} hold NaN or infinite values; remove those rows or fill in the values."
        )
    n_classes = 0
    if y.dtype.kind != "f":
        n_classes = len(classes) or count_classes((own for _, own in parts.values()), source)
    targets = checked_labels(y.astype(np.int64), n_classes, source) if n_classes else y.astype(np.float32)
    mean, std = column_statistics(training)
    names = tuple(f"x{column}" for column in range(x.shape[1]))
    labels = tuple(classes) or tuple(map(str, range(n_classes)))
    described = Description(name, n_classes, x.shape[1:], mean, std, sizes, source, labels)
    return Table(features, targets, names, described, source)
