"""Values as bytes for other processes: JSON, and safetensors for tensors. Reading them cannot run anything.

A message is the length of its JSON (8 bytes), the JSON, and the tensors that it speaks of.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

LENGTH = 8


def packed(value: Any) -> bytes:
    """Numbers, text, None, tensors, dtypes, and lists, tuples and dictionaries of them.

    >>> unpacked(packed({"records": [(1, 2.5, None)], 3: torch.ones(2)}))
    {'records': [(1, 2.5, None)], 3: tensor([1., 1.])}
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    text = json.dumps(_to_json(value, tensors)).encode()
    return len(text).to_bytes(LENGTH, "big") + text + (save(tensors) if tensors else b"")


def unpacked(content: bytes) -> Any:
    """Inverse of `packed`; tensors are on the CPU."""
    from safetensors.torch import load

    end = LENGTH + int.from_bytes(content[:LENGTH], "big")
    return _from_json(json.loads(content[LENGTH:end]), load(content[end:]) if len(content) > end else {})


def _to_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Lists stay lists; what JSON lacks is a dictionary with one key that says what it is."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_to_json(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(each, tensors) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_to_json(key, tensors), _to_json(each, tensors)] for key, each in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()  # a copy: two may share memory
        return {"tensor": name}
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process")


def _from_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_from_json(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dtype":
        dtype = getattr(torch, content)
        assert isinstance(dtype, torch.dtype)
        return dtype
    items = [_from_json(each, tensors) for each in content]
    return tuple(items) if kind == "tuple" else dict(items)
