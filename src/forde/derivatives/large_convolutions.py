"""The cheap second derivative of convolution where a loop in Python over a GPU gains from it.

Our function is written in Python, and such a loop mostly waits for Python. So it is worth its time only where torch's
own second derivative keeps the GPU busy for longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from forde.derivatives.convolution import PLAIN, TRANSPOSED, each, in_16_bits, plain, transposed

LARGE = 2.5e9
"""Multiplications from which on ours is faster, on an H200."""
LARGE_IN_16_BITS = 7e9


class LargeConvolutions(TorchFunctionMode):
    """Inside, convolutions of many multiplications have a cheap second derivative, and all have the same values."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in PLAIN and _is_large(_multiplications(PLAIN[func], *args, **kwargs), *args, **kwargs):
            return plain(func, PLAIN[func], *args, **kwargs)
        if func in TRANSPOSED and _is_large(_multiplications_transposed(*args, **kwargs), *args, **kwargs):
            return transposed(func, TRANSPOSED[func], *args, **kwargs)
        return func(*args, **kwargs)


def _is_large(multiplications: float, input: Tensor, *_: Any, **__: Any) -> bool:
    return multiplications >= (LARGE_IN_16_BITS if in_16_bits(input) else LARGE)


def _multiplications(  # noqa: PLR0917  (torch's own order of arguments)
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> float:
    """Each input pixel meets each weight of its channel, once in `stride` pixels; edges are not counted apart.

    >>> import torch
    >>> _multiplications(2, torch.ones(8, 16, 32, 32), torch.ones(64, 16, 3, 3), stride=2)
    18874368.0
    """
    return input.numel() * weight.shape[0] * math.prod(weight.shape[2:]) / groups / math.prod(each(stride, dims))


def _multiplications_transposed(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> float:
    return input.numel() * math.prod(weight.shape[1:])
