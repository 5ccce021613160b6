"""Part of the training data held out for validation, drawn by a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from forde.arguments import Arguments, as_inputs, taken_apart
from forde.data.description import Images, Table
from forde.errors import FordeError


def held_out(data: Any, share: float, *, seed: int, by_class: bool) -> tuple[Any, Any]:
    """The data in two parts of its own kind: what is left for training, and ⌊share · N⌋ samples for validation.

    Args:
        data: `(x, y)`, `Images`, a `Table` or a Dataset.
        share: between 0 and 1.
        seed: decides which samples, whatever order training takes them in.
        by_class: whether each class gives its share (to within one sample), where labels `[N]` are in memory.

    >>> (x, y), (held_x, held_y) = held_out((torch.arange(10), torch.arange(10) % 2), 0.4, seed=0, by_class=True)
    >>> len(y), sorted(held_y.tolist())
    (6, [0, 0, 1, 1])
    """
    data = taken_apart(data, "the data") if isinstance(data, Mapping) else data
    size = _size(data)
    number = int(share * size)
    if not 0 < number < size:
        raise FordeError(
            f"validation={share} of {size} samples leaves {size - number} for training and {number} for validation; "
            "pass another share, or validation data of its own."
        )
    labels = _labels(data, size) if by_class else None
    kept, held = drawn(size, number, seed=seed, labels=labels)
    return _rows(data, kept), _rows(data, held)


def without_test(data: Images | Table, share: float, *, seed: int) -> tuple[Any, Any]:
    """The data less a share to test on, and that share; each says how many samples both have.

    >>> from forde.data import load
    >>> rest, held = without_test(load("regression-1d"), 0.25, seed=0)
    >>> len(rest), len(held), held.description.splits
    (300, 100, {'train': 300, 'test': 100})
    """
    size, number = len(data), int(share * len(data))
    if not 0 < number < size:
        raise FordeError(
            f"a share of {share:g} to test on leaves {number} of {size} samples for it; give another one (--test), or "
            "test data of its own."
        )
    parts = held_out(data, share, seed=seed, by_class=bool(data.description.n_classes))
    described = replace(data.description, splits={"train": size - number, "test": number})
    return replace(parts[0], description=described), replace(parts[1], description=described)


def drawn(size: int, number: int, *, seed: int, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the samples that stay and of the `number` that are held out, both ascending.

    Chance orders the samples; labels `[N]` then sort them, and evenly spaced ones are taken.

    >>> kept, held = drawn(6, 3, seed=0, labels=np.array([0, 0, 1, 1, 2, 2]))
    >>> [int(index) // 2 for index in held]
    [0, 1, 2]
    """
    # A key of its own: neither members' initialisation nor the order of batches repeats these numbers.
    order = np.random.default_rng(np.random.SeedSequence([seed], spawn_key=(2,))).permutation(size)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    ends = np.arange(1, size + 1) * number // size
    taken = np.diff(ends, prepend=0) > 0
    return np.sort(order[~taken]), np.sort(order[taken])


def _size(data: Any) -> int:
    if isinstance(data, (DataLoader, IterableDataset)):
        raise FordeError(
            f"a {type(data).__name__} draws batches of its own, so no share of it can be held out; pass other data as "
            "validation=, or the data set itself as data."
        )
    if isinstance(data, (tuple, list)):
        if len(data) != 2 or not hasattr(data[1], "__len__"):
            raise FordeError("no share can be held out of such data; pass (x, y), or other data as validation=.")
        return len(data[1])
    if isinstance(data, Sized):
        return len(data)
    raise FordeError(
        f"a {type(data).__name__} does not say how many samples it has, so no share of it can be held out; pass other "
        "data as validation=."
    )


def _labels(data: Any, size: int) -> np.ndarray | None:
    """One label for each sample, where they are in memory."""
    if isinstance(data, Images):
        return data.labels
    y = data.y if isinstance(data, Table) else data[1] if isinstance(data, (tuple, list)) else None
    if y is None:
        return None
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    return array if array.shape == (size,) and array.dtype.kind in "biu" else None


def _rows(data: Any, index: np.ndarray) -> Any:
    if isinstance(data, Images):
        return replace(data, images=data.images[index], labels=data.labels[index])
    if isinstance(data, Table):
        return replace(data, x=data.x[index], y=data.y[index])
    if isinstance(data, Dataset):
        return Subset(data, index.tolist())
    return tuple(_of(part, index) for part in data)


def _of(values: Any, index: np.ndarray) -> Any:
    """Rows of a tensor, an array, a data frame, a list, or of each of several in a dict or tuple."""
    values = as_inputs(values) if isinstance(values, (Mapping, tuple)) else values
    if isinstance(values, (Tensor, Arguments)):
        return values[torch.from_numpy(index).to(values.device)]
    if hasattr(values, "iloc"):
        return values.iloc[index]
    return values[index] if isinstance(values, np.ndarray) else [values[i] for i in index]
