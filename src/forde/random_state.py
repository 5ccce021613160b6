"""Where the sources of random numbers stand: torch on the CPU and on GPUs, numpy, Python's random, and others' own."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

SOURCES = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Kinds of objects that random numbers come from."""
TORCH = "torch's random numbers"


@dataclass(frozen=True)
class RandomState:
    """Where the global sources stand, and some of those that a network or a data set has for itself."""

    cpu: Tensor
    """torch's, as is `cuda`."""
    cuda: dict[torch.device, Tensor]
    numpy: dict[str, Any] | None
    """None: a checkpoint does not say."""
    python: tuple[Any, ...]
    own: list[Any] = field(default_factory=list)

    def difference(self, other: RandomState) -> str | None:
        """Which source stands elsewhere, in words; None where none does."""
        if self.python != other.python:
            return "Python's random numbers"
        if not _equal(self.numpy, other.numpy):
            return "NumPy's random numbers"
        if not all(map(_equal, self.own, other.own)):
            return "random numbers of a generator of its own"
        return TORCH if self.torch_differs(other) else None

    def torch_differs(self, other: RandomState) -> bool:
        """Whether torch's global sources stand elsewhere."""
        return not (torch.equal(self.cpu, other.cpu) and _equal(self.cuda, other.cuda))


@contextmanager
def seeded(seed: int, *, gpus: bool = True) -> Iterator[None]:
    """Inside, torch's global random numbers follow the seed; afterwards they stand where they were.

    Args:
        gpus: also those of each GPU, which puts CUDA into use where there is one.

    >>> before = torch.random.get_rng_state()
    >>> with seeded(0):
    ...     first = torch.rand(2)
    >>> with seeded(0):
    ...     bool((torch.rand(2) == first).all()), bool((torch.random.get_rng_state() == before).all())
    (True, False)
    >>> bool((torch.random.get_rng_state() == before).all())
    True
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if gpus else []):
        torch.manual_seed(seed)
        yield


def get_random_state(device: torch.device | None = None, own: Sequence[Any] = ()) -> RandomState:
    """The state of all sources that code on this device may draw from.

    Args:
        device: whose state is read besides the CPU's; by default that of each GPU, once CUDA is in use.
        own: sources that are not global, of the kinds in `SOURCES`.

    >>> before = get_random_state()
    >>> expected = torch.rand(1), np.random.rand(), random.random()
    >>> before.difference(get_random_state())
    "Python's random numbers"
    >>> set_random_state(before)
    >>> (torch.rand(1), np.random.rand(), random.random()) == expected
    True
    """
    return RandomState(
        torch.get_rng_state(),
        {gpu: torch.cuda.get_rng_state(gpu) for gpu in _gpus(device)},
        np.random.get_state(legacy=False),
        random.getstate(),
        [source_state(source) for source in own],
    )


def set_random_state(state: RandomState, own: Sequence[Any] = ()) -> None:
    """Inverse of `get_random_state`."""
    torch.set_rng_state(state.cpu)
    for gpu, value in state.cuda.items():
        torch.cuda.set_rng_state(value, gpu)
    if state.numpy is not None:
        np.random.set_state(state.numpy)
    random.setstate(state.python)
    for source, value in zip(own, state.own, strict=True):
        set_source_state(source, value)


def _gpus(device: torch.device | None) -> list[torch.device]:
    if device is not None:
        return [device] if device.type == "cuda" else []
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return [torch.device("cuda", index) for index in range(count)]


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


def seed_source(source: Any, seed: int) -> None:
    """Let one of `SOURCES` begin at a seed.

    >>> source = np.random.default_rng(5)
    >>> seed_source(source, 0)
    >>> source.random() == np.random.default_rng(0).random()
    True
    """
    if isinstance(source, torch.Generator):
        source.manual_seed(seed)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = type(source.bit_generator)(seed).state
    else:
        source.seed(seed)


def random_tensors(device: torch.device) -> dict[str, Tensor]:
    """The state of the global sources as a checkpoint holds it; numpy's only where its generator is the usual one.

    >>> before = random_tensors(torch.device("cpu"))
    >>> expected = torch.rand(1), np.random.rand(), random.gauss(0, 1)
    >>> set_random_tensors(before, torch.device("cpu"))
    >>> (torch.rand(1), np.random.rand(), random.gauss(0, 1)) == expected
    True
    """
    state = get_random_state(device)
    tensors = {"torch": state.cpu}
    if device in state.cuda:
        tensors["cuda"] = state.cuda[device]
    if state.numpy is not None and state.numpy["bit_generator"] == "MT19937":
        inner = state.numpy["state"]
        rest = [inner["pos"], state.numpy["has_gauss"], state.numpy["gauss"]]
        tensors["numpy"] = torch.from_numpy(np.asarray(inner["key"]).astype(np.int64))
        tensors["numpy_rest"] = torch.tensor(rest, dtype=torch.float64)
    _, words, gauss = state.python
    tensors["python"] = torch.tensor(words)
    tensors["python_rest"] = torch.tensor([math.nan if gauss is None else gauss], dtype=torch.float64)
    return tensors


def set_random_tensors(tensors: dict[str, Tensor], device: torch.device) -> None:
    """Inverse of `random_tensors`; a source that is not among them (another device's) is left alone."""
    numpy = None
    if "numpy" in tensors:
        position, has_gauss, gauss = tensors["numpy_rest"].tolist()
        inner = {"key": tensors["numpy"].numpy().astype(np.uint32), "pos": int(position)}
        numpy = {"bit_generator": "MT19937", "state": inner, "has_gauss": int(has_gauss), "gauss": gauss}
    cuda = {device: tensors["cuda"]} if device.type == "cuda" and "cuda" in tensors else {}
    stored = float(tensors["python_rest"])
    python = (3, tuple(tensors["python"].tolist()), None if math.isnan(stored) else stored)
    set_random_state(RandomState(tensors["torch"], cuda, numpy, python))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return bool(a == b)
    return bool(np.array_equal(a, b))
