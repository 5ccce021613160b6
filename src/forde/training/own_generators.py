"""Sources of random numbers that an object holds itself, and reading it without disturbing any."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde.random_state import SOURCES, get_random_state, seed_source, set_random_state
from forde.training.code_prints import is_library, names_read

DEPTH = 8
MOST = 100
"""Things in a list or dictionary that are looked at."""


@contextmanager
def known_random_numbers(holder: Any, *, own: int = 0) -> Iterator[None]:
    """Meanwhile, torch's, numpy's and Python's random numbers begin at 0 and those of the object itself at `own`.

    Afterwards all are where they were.

    >>> generator = torch.Generator()
    >>> with known_random_numbers([generator]):
    ...     _ = torch.rand(1, generator=generator), torch.rand(1)
    >>> torch.equal(torch.rand(1, generator=generator), torch.rand(1, generator=torch.Generator()))
    True
    """
    found = list(own_generators(holder))
    before = get_random_state(torch.device("cpu"), found)
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    for generator in found:
        seed_source(generator, own)
    try:
        yield
    finally:
        set_random_state(before, found)


def own_generators(holder: Any, depth: int = DEPTH, seen: set[int] | None = None) -> Iterator[Any]:
    """Generators in attributes, lists and dictionaries, and those that an object's functions read from around them.

    >>> class Noisy:
    ...     def __init__(self):
    ...         self.transforms = [random.Random(0), {"noise": np.random.default_rng(0)}]
    >>> [type(generator).__name__ for generator in own_generators(Noisy())]
    ['Random', 'Generator']
    """
    seen = set() if seen is None else seen
    ends = (Tensor, np.ndarray, str, bytes, int, float, ModuleType, type)
    if depth == 0 or holder is None or id(holder) in seen or isinstance(holder, ends):
        return
    seen.add(id(holder))
    if isinstance(holder, SOURCES):
        if holder is not torch.default_generator:
            yield holder
        return
    for each in _inside(holder):
        yield from own_generators(each, depth - 1, seen)


def _inside(holder: Any) -> Iterator[Any]:
    if isinstance(holder, (list, tuple)):
        yield from holder[:MOST]
    elif isinstance(holder, dict):
        yield from itertools.islice(holder.values(), MOST)
    elif isinstance(holder, FunctionType):
        yield from _around(holder)
    elif isinstance(holder, MethodType):
        yield from (holder.__self__, holder.__func__)
    else:
        yield from getattr(holder, "__dict__", {}).values()
        for cls in type(holder).__mro__:
            if not is_library(cls):
                yield from (function for function in vars(cls).values() if isinstance(function, FunctionType))


def _around(function: FunctionType) -> Iterator[Any]:
    if is_library(function):
        return
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from (function.__globals__[name] for name in names_read(function.__code__) if name in function.__globals__)
