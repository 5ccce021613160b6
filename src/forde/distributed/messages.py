"""What travels between processes: values as bytes, and many tensors as one.

Values are sent as JSON, and as safetensors for the tensors in them, so that reading a message cannot run anything. A
message is the length of its JSON (8 bytes), the JSON, and the tensors that it speaks of.

Gradients are sent as one flat tensor of each type: a message for each would cost more than what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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


# Many tensors as one


def flattened(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """One flat tensor per type: all values, then a 1 or 0 for each tensor that says whether there was one.

    Networks that do not use all of their parameters have no gradient for some, and not for the same ones everywhere.

    >>> flattened([torch.ones(2), None], [torch.zeros(2), torch.zeros(1)])
    [tensor([1., 1., 0., 1., 0.])]
    """
    return [
        torch.cat(
            [
                *(torch.zeros_like(b).flatten() if a is None else a.detach().to(dtype).flatten() for a, b in pairs),
                torch.tensor([float(a is not None) for a, _ in pairs], dtype=dtype, device=pairs[0][1].device),
            ]
        )
        for dtype, pairs in _by_type(tensors, like).items()
    ]


def unflattened(flats: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor | None]:
    """Inverse of `flattened`, also of a sum of such: there is a tensor where any process had one.

    >>> like = [torch.zeros(2), torch.zeros(1)]
    >>> unflattened(flattened([torch.ones(2), None], like), like)
    [tensor([1., 1.]), None]
    """
    parts: dict[torch.dtype, list[Tensor | None]] = {}
    for flat, (dtype, pairs) in zip(flats, _by_type(like, like).items(), strict=True):
        *values, there = flat.split([*(b.numel() for _, b in pairs), len(pairs)])
        parts[dtype] = [
            value.view(b.shape) if is_there else None
            for value, (_, b), is_there in zip(values, pairs, there.tolist(), strict=True)
        ]
    remaining = {dtype: iter(values) for dtype, values in parts.items()}
    return [next(remaining[b.dtype]) for b in like]


def _by_type(
    tensors: Sequence[Tensor | None], like: Sequence[Tensor]
) -> dict[torch.dtype, list[tuple[Tensor | None, Tensor]]]:
    found: dict[torch.dtype, list[tuple[Tensor | None, Tensor]]] = {}
    for tensor, template in zip(tensors, like, strict=True):
        found.setdefault(template.dtype, []).append((tensor, template))
    return found
