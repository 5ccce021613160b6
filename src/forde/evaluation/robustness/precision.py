"""The word for how networks compute, as in `fit` and `predict`, and the dtype that autocast needs for it."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch

from forde.errors import FordeError

EvaluationPrecision = Literal["float32", "bf16", "float16"]
DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16, "float16": torch.float16}
"""The dtype of autocast; None: no autocast."""


def named_precision(precision: str, dtype: torch.dtype | None) -> str:
    """The precision, checked; older programs give a `dtype` in its place.

    >>> named_precision("bf16", None)
    'bf16'
    """
    if not isinstance(precision, str) or precision not in DTYPES:
        raise FordeError(f"precision is {precision!r}, but 'float32', 'bf16' or 'float16' was expected.")
    if dtype is None:
        return precision
    name = next((name for name, known in DTYPES.items() if known is dtype), None)
    if name is None:
        raise FordeError(f"dtype is {dtype}, but precision='float32', 'bf16' or 'float16' was expected in its place.")
    if precision not in ("float32", name):
        raise FordeError(f"precision is {precision!r} and dtype is {dtype}, but precision alone was expected.")
    warnings.warn(f"dtype={dtype} is now called precision={name!r}; write that.", FutureWarning, stacklevel=3)
    return name


def without_dtype(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a saved result; one of before `precision` says `dtype`.

    >>> without_dtype({"dtype": "torch.bfloat16", "seed": 0})
    {'precision': 'bf16', 'seed': 0}
    """
    names = {str(dtype): name for name, dtype in DTYPES.items()}
    return {
        "precision" if key == "dtype" else key: names.get(value, value) if key == "dtype" else value
        for key, value in settings.items()
    }
