"""Maxima and averages over an image that keep channels last through both derivatives.

The gradient of a maximum is a scattering of g to the places that won, and its adjoint picks v at those places:

    y = x at the winners        ∂x: scatter(g)
    scatter(g)                  ∂g: pick(v)
    pick(v)                     ∂v: scatter(u)

torch picks along flattened images with channels first, and whatever follows then runs on mixed orders of memory.

The derivative of a mean spreads g/n over all places. torch spreads g first and divides then, which writes a whole image
of equal numbers, with channels first in memory whatever the network's order is. Dividing first leaves an expanded
tensor that whatever comes next reads without any of it:

    mean(x) = sum(x)/n        ∂x: expand(g/n)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.double_backward.activations import in_layout_of


class Window(NamedTuple):
    """How a window slides, in the order that `aten::max_pool2d_with_indices` takes it."""

    size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil: bool


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Window) -> Tensor:
        y, winners = torch.ops.aten.max_pool2d_with_indices(x, *window)
        ctx.save_for_backward(x, winners)  # of x only shape and memory layout are read
        ctx.window = window
        ctx.set_materialize_grads(False)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        x, winners = ctx.saved_tensors
        if gradients[0] is None:
            return None, None
        return _Scatter.apply(gradients[0], x.detach(), winners, ctx.window), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, winners: Tensor, window: Window) -> Tensor:
        ctx.save_for_backward(x, winners)
        ctx.window = window
        return torch.ops.aten.max_pool2d_with_indices_backward(in_layout_of(g, x), x, *window, winners)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        x, winners = ctx.saved_tensors
        return _Pick.apply(gradients[0], x, winners, ctx.window), None, None, None


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, x: Tensor, winners: Tensor, window: Window) -> Tensor:
        ctx.save_for_backward(x, winners)
        ctx.window = window
        last = winners.permute(0, 2, 3, 1)  # a view onto rows of channels, if they are last
        picked = v.permute(0, 2, 3, 1).flatten(1, 2).gather(1, last.flatten(1, 2))
        return picked.view(last.shape).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        x, winners = ctx.saved_tensors
        return _Scatter.apply(gradients[0], x, winners, ctx.window), None, None, None


def max_pool2d(  # noqa: PLR0917  (torch's own order of arguments)
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor:
    """As `torch.nn.functional.max_pool2d`, `[B, C, H, W]`; other calls than with channels last are left to torch.

    >>> x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    >>> y = max_pool2d(x, 2)
    >>> torch.equal(y, F.max_pool2d(x, 2)), y.is_contiguous(memory_format=torch.channels_last)
    (True, True)
    """
    first = input.dim() != 4 or input.is_contiguous() or not input.is_contiguous(memory_format=torch.channels_last)
    if first or input.device.type != "cpu":
        return F.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=return_indices)
    window = Window(kernel_size, kernel_size if stride is None else stride, padding, dilation, ceil_mode)
    y: Tensor = _MaxPool.apply(input, window)
    return y


POOLS: dict[Callable[..., Any], int] = {
    F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool3d: 3,
}  # fmt: skip
MEANS: tuple[Callable[..., Any], ...] = (torch.mean, Tensor.mean)


def averaging(func: Callable[..., Any]) -> Callable[..., Any]:
    """One of `POOLS` or `MEANS`, as a sum over axes divided by their size.

    torch's own is called for other means than over given axes or down to one place, on devices that gain nothing, and
    where torch would add up in another dtype than that of x (it widens halves).

    >>> averaging(torch.mean)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1)
    tensor([1.5000, 3.5000])
    """
    dims = POOLS.get(func)
    names = ("dim", "keepdim") if dims is None else ("output_size",)

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args[1:], strict=False)) | kwargs
        x = args[0] if args else kwargs["input"]
        axes = given.get("dim")
        if dims is not None:
            one_place = given["output_size"] in (1, (1,) * dims, [1] * dims)
            axes, given = tuple(range(-dims, 0)) if one_place else None, {"keepdim": True}
        plain = x.device.type == "cpu" and x.is_floating_point() and x.itemsize >= 4
        if axes is None or axes == () or not plain or not given.keys() <= {"dim", "keepdim"}:
            return func(*args, **kwargs)
        axes = (axes,) if isinstance(axes, int) else tuple(axes)
        return x.sum(axes, keepdim=bool(given.get("keepdim", False))) / math.prod(x.shape[axis] for axis in axes)

    return call
