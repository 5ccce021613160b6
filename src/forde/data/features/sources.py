"""Samples in a fixed order, batch by batch, from arrays in memory or from whatever yields batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from forde.data.description import Images
from forde.errors import FordeError, whole_number
from forde.hashing import Sha256

NO_LABEL = -1
"""The label of samples that have none."""
BLOCK = 4096
"""Samples that a fingerprint reads at once; images may be memory-mapped."""


class Batch(NamedTuple):
    """Inputs `[B, ...]` and labels int64 `[B]`."""

    x: Tensor
    y: Tensor


class Fingerprint:
    """A short name for samples and labels, whatever batches they come in.

    >>> x, y = torch.arange(6).view(3, 2), torch.zeros(3, dtype=torch.long)
    >>> whole, parts = Fingerprint(), Fingerprint()
    >>> whole.add(x, y), parts.add(x[:1], y[:1]), parts.add(x[1:], y[1:])
    (None, None, None)
    >>> whole.name == parts.name
    True
    """

    def __init__(self) -> None:
        self._inputs, self._labels, self._kind = Sha256(), Sha256(), ""

    def add(self, x: Tensor, y: Tensor) -> None:
        """The next samples."""
        self._kind = repr((str(x.dtype), tuple(x.shape[1:])))
        self._inputs.add(x)
        self._labels.add(y)

    @property
    def name(self) -> str:
        """16 hexadecimal digits for all so far."""
        digest = Sha256()
        digest.add("".join((self._kind, self._inputs.hex(), self._labels.hex())))
        return digest.short()


class Source(ABC):
    """One pass over samples whose order does not change."""

    n: int | None = None
    """How many; None where that is not known before the end."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """All batches from the first one on; those of a loader say their fingerprint while they pass."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of all samples in memory, or of those that a loader has yielded so far."""


class ArraySource(Source):
    """Arrays or tensors `[N, ...]` and labels `[N]`, if there are any."""

    def __init__(self, x: Any, y: Any = None, *, batch_size: int, fingerprint: str | None = None) -> None:
        self._x = x if isinstance(x, (Tensor, np.ndarray)) else np.asarray(x)
        _as_tensor(self._x[:1] if self._x.ndim else self._x)  # refuses what are no samples
        self.n = len(self._x)
        self._y = _labels(y, self.n)
        self._batch_size = whole_number("batch_size", batch_size, at_least=1)
        self._fingerprint = fingerprint

    def batches(self) -> Iterator[Batch]:
        return self._parts(self._batch_size)

    def _parts(self, size: int) -> Iterator[Batch]:
        """Copies of a mapped file's samples are made part by part."""
        starts = range(0, len(self._x), size)
        return (Batch(_as_tensor(self._x[start : start + size]), self._y[start : start + size]) for start in starts)

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            found = Fingerprint()
            for x, y in self._parts(BLOCK):
                found.add(x, y)
            self._fingerprint = found.name
        return self._fingerprint


class LoaderSource(Source):
    """Batches `(x, y)` or x from a loader, in the sizes that it gives them."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._print = Fingerprint()

    def batches(self) -> Iterator[Batch]:
        self._print = Fingerprint()
        for given in self._loader:
            pair = given if isinstance(given, (tuple, list)) else (given, None)
            if len(pair) != 2:
                raise FordeError(
                    f"the loader yields {len(pair)} things at a time, but inputs, or inputs and labels, were expected; "
                    "wrap the data set so that an item is (x, y)."
                )
            x = _as_tensor(pair[0])
            y = _labels(pair[1], len(x))
            self._print.add(x, y)
            yield Batch(x, y)

    @property
    def fingerprint(self) -> str:
        return self._print.name


def source_of(data: Any, batch_size: int) -> Source:
    """Samples of `forde.data.Images`, an array `[N, ...]`, a pair of inputs and labels, a Dataset or a loader.

    >>> source_of((torch.zeros(5, 8, 8, 1, dtype=torch.uint8), torch.arange(5)), batch_size=2).n
    5
    """
    if isinstance(data, Images):
        return ArraySource(data.images, data.labels, batch_size=batch_size)
    if isinstance(data, (np.ndarray, Tensor)):
        return ArraySource(data, batch_size=batch_size)
    if isinstance(data, tuple) and len(data) == 2:
        return ArraySource(*data, batch_size=batch_size)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=whole_number("batch_size", batch_size, at_least=1))
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):
        return LoaderSource(data)
    raise FordeError(
        f"the data is a {type(data).__name__}, but forde.data.Images, an array of images, a pair of images and labels, "
        "a Dataset or a DataLoader was expected."
    )


def _as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        found = x.detach()
    else:
        array = np.asarray(x)
        if array.dtype.kind not in "biuf":
            raise FordeError(f"the inputs have type {array.dtype}, but numbers were expected; give images as arrays.")
        found = torch.from_numpy(np.require(array, requirements=["C", "W"]))  # torch warns of what it may not write to
    if found.dim() < 2 or not len(found):
        raise FordeError(f"the inputs have shape {list(found.shape)}, but at least one sample [N, ...] was expected.")
    return found


def _labels(y: Any, n: int) -> Tensor:
    """int64 `[N]`."""
    if y is None:
        return torch.full((n,), NO_LABEL)
    labels = y.detach().cpu() if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    if labels.shape != (n,) or labels.is_floating_point() or labels.is_complex():
        raise FordeError(
            f"there are {n} samples and labels of shape {list(labels.shape)} and type {labels.dtype}; give one whole "
            "number for each sample."
        )
    return labels.long()
