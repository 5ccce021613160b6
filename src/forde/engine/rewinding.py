"""Making a forward pass again, as it was: `memory="low"` does so after the exchange instead of keeping its graph."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

TORCH = "torch's random numbers"


@dataclass(frozen=True)
class RandomState:
    """Where every source of random numbers stands that a forward pass may draw from."""

    torch: list[Tensor]
    """Of the CPU, and of the GPU in use."""
    python: tuple[Any, ...]
    numpy: dict[str, Any]
    own: list[Any]
    """Of sources that a network has for itself."""

    def difference(self, other: RandomState) -> str | None:
        """Which source stands elsewhere, in words; None where none does."""
        if self.python != other.python:
            return "Python's random numbers"
        if not _equal(self.numpy, other.numpy):
            return "NumPy's random numbers"
        if not all(map(_equal, self.own, other.own)):
            return "random numbers of a generator of its own"
        return None if all(map(torch.equal, self.torch, other.torch)) else TORCH


SOURCES = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Kinds of objects that random numbers come from."""


def source_state(source: Any) -> Any:
    """Where one of `SOURCES` stands.

    >>> source = random.Random(0)
    >>> before, first = source_state(source), source.random()
    >>> set_source_state(source, before)
    >>> source.random() == first
    True
    """
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    return source.get_state(legacy=False) if isinstance(source, np.random.RandomState) else source.getstate()


def set_source_state(source: Any, state: Any) -> None:
    """Inverse of `source_state`."""
    if isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    elif isinstance(source, random.Random):
        source.setstate(state)
    else:
        source.set_state(state)


def random_state(device: torch.device, own: Sequence[Any] = ()) -> RandomState:
    """The state of the sources that a forward pass on this device may draw from.

    >>> before = random_state(torch.device("cpu"))
    >>> expected = torch.rand(1), np.random.rand(), random.random()
    >>> before.difference(random_state(torch.device("cpu")))
    "Python's random numbers"
    >>> set_random_state(before, torch.device("cpu"))
    >>> (torch.rand(1), np.random.rand(), random.random()) == expected
    True
    """
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return RandomState(
        states, random.getstate(), np.random.get_state(legacy=False), [source_state(source) for source in own]
    )


def set_random_state(state: RandomState, device: torch.device, own: Sequence[Any] = ()) -> None:
    """Inverse of `random_state`."""
    torch.set_rng_state(state.torch[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state.torch[1], device)
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    for source, where in zip(own, state.own, strict=True):
        set_source_state(source, where)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return bool(a == b)
    return bool(np.array_equal(a, b))


@dataclass(frozen=True)
class Start:
    """Where a forward pass began: batch, buffers and random numbers."""

    x: Tensor
    y: Tensor
    buffers: list[Tensor]
    random: RandomState
    sources: Sequence[Any]


def beginning(x: Tensor, y: Tensor, buffers: Collection[Tensor], sources: Sequence[Any] = ()) -> Start:
    """Of a forward pass that is made now."""
    state = random_state(x.device, sources)
    return Start(x, y, [buffer.clone() for buffer in buffers], state, sources)


@contextmanager
def rewound(start: Start, buffers: Collection[Tensor]) -> Iterator[None]:
    """Inside, random numbers are those from then, and buffers move from where they were to where they are now.

    >>> batch, buffer = torch.zeros(2), torch.zeros(1)
    >>> start = beginning(batch, batch, [buffer])
    >>> first, _ = torch.rand(3), buffer.add_(1)
    >>> with rewound(start, [buffer]):
    ...     second, _ = torch.rand(3), buffer.add_(1)
    >>> torch.equal(first, second), buffer
    (True, tensor([1.]))
    """
    now = random_state(start.x.device, start.sources)
    with torch.no_grad():
        for buffer, value in zip(buffers, start.buffers, strict=True):
            buffer.copy_(value)
    set_random_state(start.random, start.x.device, start.sources)
    try:
        yield
    finally:
        set_random_state(now, start.x.device, start.sources)
