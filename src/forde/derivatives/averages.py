"""Averages over an image whose derivative is a view.

The derivative of a mean spreads g/n over all places. torch spreads g first and divides then, which writes a whole image
of equal numbers, with channels first in memory whatever the network's order is. Dividing first leaves an expanded
tensor that whatever comes next reads without any of it:

    mean(x) = sum(x)/n        ∂x: expand(g/n)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

POOLS: dict[Callable[..., Any], int] = {
    F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3,
}  # fmt: skip
MEANS = (torch.mean, Tensor.mean)


def axes_of_average(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], bool] | None:
    """Over which axes a call of torch's takes the mean, and whether it keeps them; None if it is no such call.

    >>> x = torch.zeros(2, 3, 4, 4)
    >>> axes_of_average(F.adaptive_avg_pool2d, (x, 1), {})
    ((-2, -1), True)
    >>> axes_of_average(Tensor.mean, (x, (2, 3)), {})
    ((2, 3), False)
    """
    names = {"output_size"} if func in POOLS else {"dim", "keepdim"} if func in MEANS else None
    if names is None or not args or not _is_plain(args[0]) or not names >= set(kwargs):
        return None
    if func in POOLS:
        size, dims = (args[1] if len(args) > 1 else kwargs["output_size"]), POOLS[func]
        sizes = (size,) if isinstance(size, int) else tuple(size)
        return (tuple(range(-dims, 0)), True) if all(size == 1 for size in sizes) else None
    given = dict(zip(("dim", "keepdim"), args[1:], strict=False)) | kwargs
    axes = given.get("dim")
    if axes is None or axes == ():
        return None
    return ((axes,) if isinstance(axes, int) else tuple(axes)), bool(given.get("keepdim", False))


def _is_plain(x: Tensor) -> bool:
    """Whether torch itself would add up in the dtype of x (it widens halves), on a device that gains from this."""
    return x.device.type == "cpu" and x.is_floating_point() and x.itemsize >= 4


def average(x: Tensor, axes: tuple[int, ...], *, keepdim: bool = False) -> Tensor:
    """The mean of x over some axes, all others kept.

    >>> average(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (1,))
    tensor([1.5000, 3.5000])
    """
    return x.sum(axes, keepdim=keepdim) / math.prod(x.shape[axis] for axis in axes)
