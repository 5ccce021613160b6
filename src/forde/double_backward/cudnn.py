"""What shapes cuDNN is fast at.

Tensor cores read channels in groups of eight: with 16 bits, images of 3 channels are given 8, the others 0. For a
kernel of one pixel that moves in strides, the pixels that count are taken out first: cuDNN falls back to kernels that
take up to seven times as long otherwise. And of a kernel that sees one pixel and padding around it, only the weights on
that pixel are used: torch is of two minds about the memory layout of the others' gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.double_backward.convolution import each, in_16_bits


def in_good_shape(conv2d: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function like `torch.conv2d` that puts what is on a GPU into shapes that cuDNN is fast at."""

    def call(  # noqa: PLR0917  (torch's own order of arguments)
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if input.is_cuda and input.dim() == 4 and groups == 1:
            halved = in_16_bits(input)
            input, weight, stride, padding = good_shape(input, weight, stride, padding, dilation, halved=halved)
        return conv2d(input, weight, bias, stride, padding, dilation, groups)

    return call


CHANNELS_READ_AT_ONCE = 8


def good_shape(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any = 1, *, halved: bool
) -> tuple[Tensor, Tensor, Any, Any]:
    """Input `[B, C, H, W]`, weight `[O, C, h, w]`, stride and padding of a convolution with the same result, for cuDNN.

    Args:
        halved: whether the arithmetic is of 16 bits.

    >>> x, weight, stride, _ = good_shape(torch.ones(2, 16, 8, 8), torch.ones(4, 16, 1, 1), 2, 0, halved=True)
    >>> x.shape, stride
    (torch.Size([2, 16, 4, 4]), (1, 1))
    """
    if x.shape[2:] == (1, 1) and not isinstance(padding, str):
        geometry = zip(weight.shape[2:], each(stride, 2), each(padding, 2), each(dilation, 2), strict=True)
        row, column = (_on_the_pixel(*along) for along in geometry)
        if row is not None and column is not None:
            weight, padding = weight[:, :, row : row + 1, column : column + 1], 0
    down, across = each(stride, 2)
    if weight.shape[2:] == (1, 1) and max(down, across) > 1 and padding in ("valid", 0, (0,), (0, 0)):
        x, down, across = x[:, :, ::down, ::across].contiguous(memory_format=torch.channels_last), 1, 1
    missing = -x.shape[1] % CHANNELS_READ_AT_ONCE
    if missing and halved:
        x, weight = (F.pad(tensor, (0, 0, 0, 0, 0, missing)) for tensor in (x, weight))
    return x, weight, (down, across), padding


def _on_the_pixel(size: int, stride: int, padding: int, dilation: int) -> int | None:
    """Which of a kernel's weights along one axis lies on an image of one pixel; None if several do, or none does.

    >>> _on_the_pixel(size=3, stride=1, padding=1, dilation=1), _on_the_pixel(size=3, stride=1, padding=2, dilation=1)
    (1, None)
    """
    places = (2 * padding - dilation * (size - 1)) // stride + 1
    found, beside = divmod(padding, dilation)
    return found if places == 1 and not beside and found < size else None
