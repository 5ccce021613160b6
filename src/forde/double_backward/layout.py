"""Keeping the tensors of a backward pass in one order of memory.

Images run through a network with channels last. Cotangents often come back with channels first: from the exchange,
whose vectors are flattened images, and from averages over an image, whose derivative torch writes so. A CPU's
pointwise and BatchNorm kernels are ten times slower on tensors in different orders than on equal ones, and whatever
they write goes on in the wrong order.
"""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def in_layout_of(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor `[B, C, ...]` in the order of memory of another one, where a CPU gains from it; the same numbers.

    Expanded tensors stay as they are: they are read fast in any order, and have nothing to copy.

    >>> images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    >>> in_layout_of(torch.randn(2, 3, 4, 4), like=images).stride() == images.stride()
    True
    """
    strides = tensor.stride()
    if strides == like.stride() or tensor.device.type != "cpu" or 0 in strides:
        return tensor
    last = FORMATS.get(like.dim())
    if last is None:
        return tensor
    found = [order for order in (torch.contiguous_format, last) if like.is_contiguous(memory_format=order)]
    return tensor.contiguous(memory_format=found[0]) if len(found) == 1 else tensor  # of one channel it is both
