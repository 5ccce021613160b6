"""Checks and numbers that all readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from forde.errors import FordeError

STATISTICS_ROWS = 5_000
"""Images over which channel statistics of an unknown folder are taken, evenly spaced."""
MAX_CLASSES = 100_000
MAX_NAME = 1_000
"""Characters that the name of a class or a column may have."""
BLOCK = 1 << 20
"""Values that statistics take at once: their decimals need eight times the memory of bytes."""


def checked_labels(labels: Sequence[int] | np.ndarray, n_classes: int, file: Path | str) -> np.ndarray:
    """The labels as int64 `[N]`, all in 0..n_classes − 1.

    >>> checked_labels([0, 2], 3, "labels.npy")
    array([0, 2])
    """
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:  # several publishers store a column
        array = array[:, 0]
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise FordeError(
            f"the labels in '{file}' have shape {array.shape} and type {array.dtype}, but one whole number for each "
            "image was expected."
        )
    outside = np.flatnonzero((array < 0) | (array >= n_classes))
    if len(outside):
        raise FordeError(
            f"label {array[outside[0]]} in row {outside[0]} of '{file}' is outside 0..{n_classes - 1}; "
            "correct the label or name the right data set."
        )
    return array.astype(np.int64)


def row_in_words(row: int, path: Path) -> str:
    """A row as people count them, from 1; a CSV file begins with the names of columns.

    >>> row_in_words(0, Path("a.csv"))
    'row 1 below the header'
    """
    return f"row {row + 1:,} below the header" if path.suffix.lower() == ".csv" else f"row {row + 1:,} (counted from 1)"


def check_finite(x: np.ndarray, names: Sequence[str], where: str, row: Callable[[int], str]) -> None:
    """Refuse rows `[N, D]` with a value that is missing or infinite; `where` and `row` say in words where it is.

    >>> check_finite(np.array([[1.0, 2.0]]), ["a", "b"], "the rows", str)
    """
    finite = np.isfinite(x)
    if finite.all():
        return
    place = int(np.flatnonzero(~finite.all(0))[0])
    wrong = np.flatnonzero(~finite[:, place])
    first = row(int(wrong[0]))
    if len(wrong) == 1:
        raise FordeError(
            f"column '{names[place]}' in {where} has a missing or infinite value in {first}; remove that row or "
            "fill in the value."
        )
    raise FordeError(
        f"column '{names[place]}' in {where} has {len(wrong):,} missing or infinite values, the first in {first}; "
        "remove those rows or fill in the values."
    )


def count_classes(labels: Iterable[np.ndarray], file: Path | str) -> int:
    """One more than the highest label of all parts, where nothing else tells the number of classes.

    >>> count_classes([np.array([0, 2]), np.array([1])], "labels.npy")
    3
    """
    parts = list(labels)
    for part in parts:
        if not part.size or part.dtype.kind not in "biu":
            raise FordeError(f"the labels in '{file}' are of type {part.dtype}, but whole numbers were expected.")
    highest = max(int(part.max()) for part in parts)
    if highest >= MAX_CLASSES:  # every class gets a name
        raise FordeError(
            f"label {highest} in '{file}' would mean as many classes; re-number the classes from 0, at most "
            f"{MAX_CLASSES:,}."
        )
    return highest + 1


def check_class_names(names: Sequence[str], file: Path | str) -> None:
    """Refuse names of classes that are empty, endless or too many.

    >>> check_class_names(["cat", ""], "pets.parquet")
    Traceback (most recent call last):
    forde.errors.FordeError: class 1 in 'pets.parquet' has an empty name; name it or remove its samples.
    """
    if len(names) > MAX_CLASSES:
        raise FordeError(
            f"'{file}' names {len(names):,} classes, but {MAX_CLASSES:,} are the most; see whether these are classes."
        )
    for label, name in enumerate(names):
        if not name.strip():
            raise FordeError(f"class {label} in '{file}' has an empty name; name it or remove its samples.")
        if len(name) > MAX_NAME:
            raise FordeError(
                f"class {label} in '{file}' has a name of {len(name):,} characters, {name[:30]!r}..., but {MAX_NAME:,} "
                "are the most; see whether these are classes."
            )


def check_same_length(images: int, labels: int, file: Path | str) -> None:
    """Refuse a number of labels other than that of images."""
    if images != labels:
        raise FordeError(f"'{file}' has {images} images but {labels} labels; get the file again.")
    if not images:
        raise FordeError(f"'{file}' holds no images; get the file again.")


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the scale 0..1, of uint8 `[N, H, W, C]`.

    From histograms of levels: exact, without a copy of the images as decimals.

    >>> channel_statistics(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    levels = np.arange(256) / 255
    means, stds = [], []
    pixels = images.reshape(-1, images.shape[-1])
    for channel in range(images.shape[-1]):
        blocks = (pixels[start : start + BLOCK, channel] for start in range(0, len(pixels), BLOCK))
        counts = sum((np.bincount(block, minlength=256) for block in blocks), np.zeros(256, np.int64))
        mean = float(counts @ levels / counts.sum())
        means.append(mean)
        stds.append(float(np.sqrt(counts @ (levels - mean) ** 2 / counts.sum())))
    return tuple(means), tuple(stds)


def column_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column of a table `[N, D]`, in float64.

    >>> column_statistics(np.array([[1.0, 0.0], [3.0, 0.0]]))
    ((2.0, 0.0), (1.0, 0.0))
    """
    width = max(1, BLOCK // max(len(x), 1))
    blocks = [x[:, start : start + width] for start in range(0, max(x.shape[1], 1), width)]
    means = np.concatenate([block.mean(0, np.float64) for block in blocks])
    stds = np.concatenate([block.std(0, np.float64) for block in blocks])
    return tuple(means.tolist()), tuple(stds.tolist())


def evenly_spaced(count: int, at_most: int = STATISTICS_ROWS) -> np.ndarray:
    """Up to `at_most` of the positions 0..count − 1, evenly spaced.

    >>> evenly_spaced(10, 5)
    array([0, 2, 4, 6, 8])
    """
    return np.arange(0, count, max(1, -(-count // at_most)))


def first_duplicate(digests: Sequence[bytes], labels: np.ndarray) -> tuple[int, int] | None:
    """Two positions with the same content under different labels, if there are any.

    >>> first_duplicate([b"a", b"b", b"a"], np.array([0, 1, 1]))
    (0, 2)
    """
    seen: dict[bytes, int] = {}
    for position, digest in enumerate(digests):
        earlier = seen.setdefault(digest, position)
        if labels[earlier] != labels[position]:
            return earlier, position
    return None
