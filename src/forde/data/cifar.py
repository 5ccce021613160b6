"""CIFAR-10 and CIFAR-100 as published: pickled batches of `[n, 3072]` bytes, channel after channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from forde.data.checks import check_same_length, checked_labels
from forde.data.unpickling import read_pickle
from forde.errors import FordeError

_FILES = {
    ("cifar10", "train"): tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
_LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
_CLASSES = {"cifar10": 10, "cifar100": 100}


def read_cifar_batches(name: str, folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[N, 32, 32, 3]` and labels `[N]` of "cifar10" or "cifar100"."""
    parts = [_read_batch(folder / file, _LABELS[name], _CLASSES[name]) for file in _FILES[name, split]]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _read_batch(path: Path, label_key: str, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(path)
    data, labels = _entry(batch, "data", path), _entry(batch, label_key, path)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise FordeError(f"'data' in '{path}' is not uint8 of shape (N, 3072); get the file again.")
    if not isinstance(labels, np.ndarray) and not (isinstance(labels, list) and all(type(n) is int for n in labels)):
        raise FordeError(f"'{label_key}' in '{path}' is not a list of whole numbers; get the file again.")
    labels = checked_labels(labels, n_classes, path)
    check_same_length(len(data), len(labels), path)
    return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def _entry(batch: object, key: str, path: Path) -> Any:
    if isinstance(batch, dict):
        for spelling in (key.encode(), key):  # the published files are from Python 2
            if spelling in batch:
                return batch[spelling]
    raise FordeError(f"'{path}' has no entry '{key}', so it is not a batch of this data set; get the file again.")
