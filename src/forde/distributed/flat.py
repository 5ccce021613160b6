"""Many tensors as one, for the way between processes: a message for each would cost more than what is in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pack(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """One flat tensor per type: all values, then a 1 or 0 for each tensor that says whether there was one.

    Networks that do not use all of their parameters have no gradient for some, and not for the same ones everywhere.

    >>> pack([torch.ones(2), None], [torch.zeros(2), torch.zeros(1)])
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


def unpack(flats: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor | None]:
    """Inverse of `pack`, also of a sum of such: there is a tensor where any process had one.

    >>> unpack(pack([torch.ones(2), None], [torch.zeros(2), torch.zeros(1)]), [torch.zeros(2), torch.zeros(1)])
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
