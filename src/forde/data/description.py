"""What a data set is (Description) and what loading one gives (Images, Table)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from forde.data.encoding import Encoding


@dataclass(frozen=True)
class Description:
    """A data set in a few numbers.

    >>> from forde.data import describe
    >>> d = describe("cifar10")
    >>> d.n_classes, d.shape, d.splits["test"], d.classes[3]
    (10, (32, 32, 3), 10000, 'cat')
    """

    name: str
    n_classes: int
    """0 for regression."""
    shape: tuple[int, ...]
    """`(H, W, C)` of an image or `(D,)` of a row."""
    mean: tuple[float, ...]
    """Per channel on the scale 0..1, or per feature in its own unit, over the training split; empty until loaded
    for sets that only the files describe."""
    std: tuple[float, ...]
    splits: Mapping[str, int]
    """Split → number of samples."""
    source: str
    """Who made it and under which licence, in one line."""
    classes: tuple[str, ...] = ()
    """Names in the order of the labels; empty where they are read from the files and nothing is loaded yet."""


@dataclass(frozen=True)
class Images:
    """One split of an image data set, as bytes: networks' inputs are made on the device."""

    images: np.ndarray
    """uint8 `[N, H, W, C]`, possibly memory-mapped."""
    labels: np.ndarray
    """int64 `[N]`."""
    description: Description
    source: str
    """Where these images came from: the layout that was read, or how they were generated."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Table:
    """One split of a feature table."""

    x: np.ndarray
    """float32 `[N, D]`."""
    y: np.ndarray
    """`[N]`, int64 classes or float32 quantities (`description.n_classes` is 0)."""
    feature_names: tuple[str, ...]
    """D names."""
    description: Description
    source: str
    target_name: str = "y"
    """Of the column that y is."""
    encoding: Encoding | None = None
    """How text and gaps of the file became these columns; None where it had none."""

    def __len__(self) -> int:
        return len(self.y)
