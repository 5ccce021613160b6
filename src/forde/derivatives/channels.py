"""Numbers per channel beside images `[B, C, ...]`."""

from __future__ import annotations

from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """In float32 or better, for sums.

    >>> import torch
    >>> wide(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.itemsize < 4 else tensor


def spread(channels: Tensor, y: Tensor) -> Tensor:
    """`[C]` → `[1, C, 1, ...]`, to be multiplied with y `[B, C, ...]`.

    >>> import torch
    >>> spread(torch.ones(3), torch.ones(2, 3, 4, 4)).shape
    torch.Size([1, 3, 1, 1])
    """
    return channels.view(1, -1, *[1] * (y.dim() - 2))


def plus(total: Tensor | None, term: Tensor) -> Tensor:
    """A sum that may not have begun.

    >>> import torch
    >>> plus(None, torch.ones(1))
    tensor([1.])
    """
    return term if total is None else total + term
