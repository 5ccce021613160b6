"""Settings of likelihoods: numbers from lists or tensors, checked, and as tensors where they are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forde.errors import FordeError

_kept: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}


def numbers_from_0(name: str, values: Any) -> tuple[float, ...]:
    """A list or tensor of numbers ≥ 0, not all 0, as a tuple that can be compared and saved.

    >>> numbers_from_0("class_weights", torch.tensor([1.0, 2.5]))
    (1.0, 2.5)
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    fits = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
    if fits and all(type(value) in (int, float) and 0 <= value < math.inf for value in values) and any(values):
        return tuple(float(value) for value in values)
    raise FordeError(
        f"{name} is {str(values)[:60]}, but a list or tensor of one number for each was expected, none of them "
        "negative and not all 0."
    )


def as_weights(values: tuple[float, ...], like: Tensor) -> Tensor:
    """The numbers as a tensor `[K]` of the type and on the device of `like`.

    It is kept, because a CUDA graph cannot copy from the host's memory.

    >>> as_weights((1.0, 2.0), torch.zeros(3, dtype=torch.float64))
    tensor([1., 2.], dtype=torch.float64)
    """
    key = values, like.dtype, like.device
    found = _kept.get(key)
    if found is None:
        found = torch.tensor(values, dtype=like.dtype, device=like.device)
        if type(found) is Tensor:  # while a step is traced, tensors have no data
            _kept[key] = found
    return found
