"""What training data is known again by: a hash of all of it, or of as much as can be read in a few seconds.

Samples are visited in an order that is spread over all of them and depends on their number only. So whatever was read
in the time there was is a fair sample, and a run that goes on reads exactly as much and compares.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from forde.hashing import Sha256, canonical, json_name
from forde.training.code_prints import code_print
from forde.training.feed import Feed, LoaderFeed
from forde.training.own_generators import known_random_numbers
from forde.training.plain import described

log = logging.getLogger(__name__)

SECONDS = 4.0
"""For which data is read before training begins."""
BLOCK = 1 << 20
"""Bytes that are read at once, of data in memory."""
TRIED_TWICE = 32
"""Samples that are read twice to see if they are the same each time."""
RANDOM, STREAM, UNREADABLE = "random", "stream", "unreadable"
"""Instead of a hash: samples that differ whenever they are read, that come only once, or not by their number."""


def describe_data(feed: Feed, samples: int | None = None) -> dict[str, Any]:
    """Number of samples, how they are drawn, and a hash of their content.

    Args:
        samples: read this many for the hash; by default as many as can be read in a few seconds.
    """
    loader = {"loader": describe_loader(feed.loader)} if isinstance(feed, LoaderFeed) else {}
    content, read = _content(feed, samples)
    if read < feed.size and content not in (STREAM, UNREADABLE):
        log.info(
            "data: %s of %s samples were read for its fingerprint; on resume, changes in others are not noticed",
            f"{read:,}", f"{feed.size:,}",
        )  # fmt: skip
    return {"size": feed.size, **loader, "samples": read, "content": content}


def describe_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    """Settings of a DataLoader that decide which batches it yields; how many processes read them is not among them."""
    collate = loader.collate_fn
    return {
        "dataset": type(loader.dataset).__qualname__,
        "dataset_code": code_print(type(loader.dataset)),
        "batch_size": loader.batch_size,
        "shuffle": isinstance(loader.sampler, RandomSampler),
        "drop_last": loader.drop_last,
        "sampler": _sampler(loader.sampler),
        "batch_sampler": _sampler(loader.batch_sampler),
        "collate": described(collate) if callable(collate) else None,
    }


def _sampler(sampler: Any) -> dict[str, Any] | None:
    """Its type, and a hash of what it was made with: weights and indices may be as many as samples."""
    if sampler is None:
        return None
    kept = {
        name: value
        for name, value in getattr(sampler, "__dict__", {}).items()
        if not name.startswith("_") and isinstance(value, (bool, int, float, str, list, tuple, Tensor, np.ndarray))
    }
    arguments = json_name(described(kept))
    code = code_print(type(sampler))
    return {"type": type(sampler).__qualname__, "arguments": arguments, **({} if code is None else {"code": code})}


def spread(n: int) -> Iterator[int]:
    """All of 0..n−1 once each, any beginning of them spread over the whole.

    >>> list(spread(8))
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    stride = max(1, round(n * (math.sqrt(5) - 1) / 2))
    while math.gcd(stride, n) > 1:
        stride += 1
    return (i * stride % n for i in range(n))


def _content(feed: Feed, samples: int | None) -> tuple[str, int]:
    """A hash and of how many samples, or why there is none."""
    if feed.rows(0, 1) is not None:
        return _of_memory(feed, samples)
    assert isinstance(feed, LoaderFeed)
    dataset = feed.loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return STREAM, 0
    try:
        return _of_items(feed.loader, samples)
    except Exception as error:  # a user's code; the same reading may work with the loader's own sampler
        log.info("data: it cannot be read by number (%s), so changes in it are not noticed", type(error).__name__)
        return UNREADABLE, 0


def _of_memory(feed: Feed, samples: int | None) -> tuple[str, int]:
    digest, started, read = Sha256(), time.monotonic(), 0
    each = sum(_nbytes(part) for part in feed.rows(0, 1) or ())
    size = max(1, BLOCK // max(1, each))
    for block in spread(-(-feed.size // size)):
        rows = feed.rows(block * size, min((block + 1) * size, feed.size))
        assert rows is not None
        _take(digest, rows)
        read += len(rows[-1])
        if read >= samples if samples is not None else time.monotonic() - started > SECONDS:
            break
    return digest.short(), read


def _of_items(loader: DataLoader[Any], samples: int | None) -> tuple[str, int]:
    """Items one by one, all random numbers beginning at the same place; whatever drew from them is put back."""
    dataset = loader.dataset
    size = len(dataset)  # type: ignore[arg-type]
    once, read = _hashed(loader, min(size, TRIED_TWICE), seed=0, seconds=SECONDS / 4)
    again, _ = _hashed(loader, read, seed=1)
    if once != again:
        return RANDOM, read
    return _hashed(loader, size, seconds=SECONDS) if samples is None else _hashed(loader, samples)


def _hashed(loader: DataLoader[Any], samples: int, *, seed: int = 0, seconds: float = math.inf) -> tuple[str, int]:
    """A hash of the first so many items, or of as many as can be read in some seconds; and how many they were.

    Args:
        seed: of generators that the data set holds itself: whether they matter shows with another one.
    """
    digest, started, read = Sha256(), time.monotonic(), 0
    order = itertools.islice(spread(len(loader.dataset)), samples)  # type: ignore[arg-type]
    with known_random_numbers(loader.dataset, own=seed):
        for item in _items(loader, order):
            _take(digest, item)
            read += 1
            if time.monotonic() - started > seconds:
                break
    return digest.short(), read


def _items(loader: DataLoader[Any], order: Iterator[int]) -> Iterator[Any]:
    """Items in an order. Where the loader has processes that read, so has this one: some data sets open files in them
    and must not be read here first."""
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {"num_workers": 1, "worker_init_fn": loader.worker_init_fn}
        workers["multiprocessing_context"] = loader.multiprocessing_context
    generator = torch.Generator().manual_seed(0)
    yield from DataLoader(
        loader.dataset, batch_size=None, sampler=_Order(order), collate_fn=_as_it_is, generator=generator, **workers
    )


class _Order:
    """An iterator as a sampler."""

    def __init__(self, order: Iterator[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return self.order


def _as_it_is(item: Any) -> Any:
    return item


def _take(digest: Sha256, value: Any) -> None:
    """Add a sample, whatever it is made of."""
    if isinstance(value, (tuple, list)):
        digest.add(f"{len(value)}")
        for each in value:
            _take(digest, each)
    elif isinstance(value, Mapping):
        _take(digest, [part for pair in sorted(value.items(), key=lambda pair: str(pair[0])) for part in pair])
    elif isinstance(value, Tensor):
        digest.add(repr((str(value.dtype).removeprefix("torch."), tuple(value.shape))))
        digest.add(value)
    elif hasattr(value, "__array_interface__"):  # arrays, numbers of numpy, and images
        array = np.asarray(value)
        digest.add(repr((str(array.dtype), array.shape)))
        digest.add(repr(array.tolist()) if array.dtype.hasobject else array)
    else:
        digest.add(canonical(described(value)))


def _nbytes(rows: Any) -> int:
    return int(rows.nbytes)
