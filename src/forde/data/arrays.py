"""Data sets from arrays in memory and from `.npz` files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from forde.errors import FordeError, unknown_name

from .checks import channel_statistics, check_same_length, checked_labels
from .description import Description, Images, Table

_PAIRS = (("x", "y"), ("images", "labels"), ("data", "labels"), ("X", "y"))
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
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            parts = {part: (file[a], file[b]) for part, (a, b) in _array_names(file.files, path).items()}
    except FileNotFoundError as error:
        raise FordeError(f"the file '{path}' is missing; check its name.") from error
    except FordeError:
        raise
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise FordeError(
            f"'{path}' is truncated, not a .npz file, or holds Python objects instead of numbers; write it again with "
            "numpy.savez."
        ) from error
    return _from_parts(parts, split, path.stem, f"the file '{path}'")


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
        raise FordeError(
            f"'{path}' holds the arrays {', '.join(sorted(names)) or 'none'}, but x and y, images and labels, or these "
            "per split (x_train, y_train, ...) were expected."
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
    sizes = {part: len(y) for part, (_, y) in parts.items()}
    x, y = parts[split]
    if not all(own.size and own.dtype.kind in "biuf" for _, own in parts.values()):
        raise FordeError(f"the targets in {source} are empty or of type {y.dtype}; give one number for each sample.")
    if x.ndim == 2:
        return _table(parts, split, sizes=sizes, name=name, source=source, classes=classes)
    images, training = (_as_images(parts[part][0], source) for part in (split, "train" if "train" in parts else split))
    check_same_length(len(images), len(y), source)
    n_classes = len(classes) or 1 + max(int(own.max()) for _, own in parts.values())
    mean, std = channel_statistics(training)
    labels = checked_labels(y, n_classes, source)
    names = tuple(classes) or tuple(map(str, range(n_classes)))
    return Images(
        images, labels, Description(name, n_classes, images.shape[1:], mean, std, sizes, source, names), source
    )


def _as_images(x: np.ndarray, source: str) -> np.ndarray:
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or x.shape[-1] not in (1, 3):
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
    if x.dtype.kind not in "biuf" or y.ndim != 1:
        raise FordeError(
            f"{source} has features of type {x.dtype} and targets of shape {y.shape}; numbers and one target "
            "a row were expected."
        )
    check_same_length(len(x), len(y), source)
    if not np.isfinite(x).all():
        raise FordeError(f"the features in {source} hold NaN or infinite values; remove or impute those rows.")
    n_classes = 0
    if y.dtype.kind != "f":
        n_classes = len(classes) or 1 + max(int(own.max()) for _, own in parts.values())
    targets = checked_labels(y.astype(np.int64), n_classes, source) if n_classes else y.astype(np.float32)
    mean, std = (tuple(values.tolist()) for values in (training.mean(0, np.float64), training.std(0, np.float64)))
    names = tuple(f"x{column}" for column in range(x.shape[1]))
    labels = tuple(classes) or tuple(map(str, range(n_classes)))
    described = Description(name, n_classes, x.shape[1:], mean, std, sizes, source, labels)
    return Table(x.astype(np.float32), targets, names, described, source)
