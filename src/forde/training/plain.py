"""Python values as JSON: states of schedulers and optimizers, which come back; settings, which are only compared."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde.errors import FordeError
from forde.hashing import array_name, canonical
from forde.training.code_prints import code_print


def to_plain(value: Any) -> Any:
    """A state in numbers, text, lists and dictionaries; `like` is the way back.

    Functions are left out of dictionaries: they are code, and whoever goes on brings his own.

    >>> to_plain({"betas": (0.9, 0.99), "milestones": {30: 1}, "scale": len})
    {'betas': [0.9, 0.99], 'milestones': [[30, 1]]}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if not callable(item)}
        if all(isinstance(key, str) for key in kept):
            return {key: to_plain(item) for key, item in kept.items()}
        return [[to_plain(key), to_plain(item)] for key, item in kept.items()]
    raise FordeError(
        f"a value of type {type(value).__name__} cannot be stored in a checkpoint; use an optimizer and a scheduler "
        "whose state is made of tensors and numbers, or train without run=."
    )


def like(template: Any, plain: Any) -> Any:
    """A value from JSON, with the types that `template`, its counterpart in a fresh object, has.

    >>> like({"betas": (0.5, 0.5), "milestones": {10: 2}}, {"betas": [0.9, 0.99], "milestones": [[30, 1]]})
    {'betas': (0.9, 0.99), 'milestones': {30: 1}}
    """
    if isinstance(template, Tensor):
        return torch.full_like(template, plain)
    if isinstance(template, (list, tuple)) and isinstance(plain, list):
        same = len(template) == len(plain)
        items = [like(old, new) for old, new in zip(template, plain, strict=True)] if same else plain
        return tuple(items) if isinstance(template, tuple) else items
    if isinstance(template, Mapping) and isinstance(plain, list):
        return type(template)(dict(plain))  # type: ignore[call-arg]
    if isinstance(template, Mapping) and isinstance(plain, dict):
        return {**template, **{key: like(template.get(key), value) for key, value in plain.items()}}
    return plain


def described(value: Any) -> Any:
    """What a setting is, in JSON that two runs can compare: no addresses, arrays by their content, own code by its.

    >>> described((1, float("inf"), torch.float32, len))
    [1, 'inf', 'torch.float32', 'builtins.len']
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return described(value.item())
    if isinstance(value, (Tensor, np.ndarray)):
        return {"shape": list(value.shape), "dtype": str(value.dtype), "content": array_name(value)}
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [described(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((described(item) for item in value), key=canonical)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        settings = {name: described(getattr(value, name)) for name in fields}
        return {"type": type(value).__name__, **_own_code(type(value)), **settings}
    if isinstance(value, (torch.dtype, torch.device, Path)):
        return str(value)
    if isinstance(value, partial):
        return {"function": described(value.func), "args": described(value.args), "keywords": described(value.keywords)}
    if hasattr(value, "__qualname__"):
        name = f"{getattr(value, '__module__', '')}.{value.__qualname__}"
        code = _own_code(value)
        return {"function": name, **code} if code else name
    return _described_object(value)


def _described_object(value: Any) -> Any:
    """Its repr; and where that does not say all, its class's code and the numbers and functions that it holds."""
    shown = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    code = _own_code(type(value))
    if not code and shown == repr(value) and not isinstance(value, torch.nn.Module):
        return shown
    held = {
        name: described(item)
        for name, item in getattr(value, "__dict__", {}).items()
        if name != "training" and (_is_function(item) or (name[0] != "_" and isinstance(item, (bool, int, float, str))))
    }
    return {"function": shown, **code, **held} if code or held else shown


def _is_function(value: Any) -> bool:
    return callable(value) and hasattr(value, "__qualname__")


def _own_code(value: Any) -> dict[str, str]:
    """The fingerprint of a user's own code; nothing for a library's."""
    code = code_print(value)
    return {} if code is None else {"code": code}
