"""A cheap second derivative for convolution.

Convolution y = x∗w, its input gradient dgrad(g, w) and its weight gradient wgrad(g, x) are each linear in both
arguments, and the adjoint of each is made of the other two:

    x∗w          ∂x: dgrad(g, w)      ∂w: wgrad(g, x)
    dgrad(g, w)  ∂g: v∗w              ∂w: wgrad(g, v)
    wgrad(g, x)  ∂g: x∗u              ∂x: dgrad(g, u)

so derivatives of every order are ordinary convolution calls. torch's own double backward computes the term for w as a
convolution whose kernel is as large as the image, which is many times slower.

A compiler is given all of these as separate operations. Without one each function in Python costs time, so there is
one only: dgrad is torch's transposed convolution, which torch knows how to differentiate once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.double_backward.activations import in_layout_of
from forde.torch_private import wanted


class Geometry(NamedTuple):
    """How a convolution slides, in the order that `aten::convolution` takes it."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return torch.ops.aten.convolution(x, w, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,), (x, w) = gradients, ctx.saved_tensors
        if g is None:
            return (None,) * 4
        of_x, of_w, of_bias = wanted(ctx, 3)
        g = in_layout_of(g, x)
        return (
            _InputGradient.apply(g, w, x, ctx.geometry) if of_x else None,
            _WeightGradient.apply(g, x, w, ctx.geometry) if of_w else None,
            g.sum([0, *range(2, g.dim())]) if of_bias else None,
            None,
        )


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, w: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(g, w)  # of x only shape and memory layout are read
        ctx.geometry = geometry
        return torch.ops.aten.convolution_backward(g, x, w, None, *geometry, (True, False, False))[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (g, w), (of_g, of_w) = ctx.saved_tensors, wanted(ctx, 2)
        v = in_layout_of(gradients[0], g)
        return (
            _Convolve.apply(v, w, None, ctx.geometry) if of_g else None,
            _WeightGradient.apply(g, v, w, ctx.geometry) if of_w else None,
            None,
            None,
        )


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(g, x)  # of w only shape and memory layout are read
        ctx.geometry = geometry
        return torch.ops.aten.convolution_backward(g, x, w, None, *geometry, (False, True, False))[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (u,), (g, x), (of_g, of_x) = gradients, ctx.saved_tensors, wanted(ctx, 2)
        return (
            _Convolve.apply(x, u, None, ctx.geometry) if of_g else None,
            _InputGradient.apply(g, u, x, ctx.geometry) if of_x else None,
            None,
            None,
        )


class _ConvolveEagerly(_Convolve):
    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (g,), (x, w), geometry = gradients, ctx.saved_tensors, ctx.geometry
        if g is None:
            return (None,) * 4
        of_x, of_w, of_bias = wanted(ctx, 3)
        g = in_layout_of(g, x)
        dx = dw = None
        if torch.is_grad_enabled():  # to be differentiated again
            if of_x:
                stride, padding, dilation, transposed, rest, groups = geometry
                if not transposed:  # pixels at the end of x that a convolution in strides did not reach
                    sizes = zip(x.shape[2:], g.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
                    rest = tuple(n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in sizes)
                adjoint = Geometry(
                    stride, padding, dilation, not transposed, (0,) * len(rest) if transposed else rest, groups
                )
                dx = torch.ops.aten.convolution(g, w, None, *adjoint)
                if dx.requires_grad and x.device.type == "cpu":
                    dx.register_hook(lambda v: None if v is None else in_layout_of(v, x))
            if of_w:
                dw = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, (False, True, False))[1]
        elif of_x or of_w:
            dx, dw, _ = torch.ops.aten.convolution_backward(g, x, w, None, *geometry, (of_x, of_w, False))
        return dx, dw, g.sum([0, *range(2, g.dim())]) if of_bias else None, None


PLAIN = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
TRANSPOSED = {torch.conv_transpose1d: 1, torch.conv_transpose2d: 2, torch.conv_transpose3d: 3}


LARGE, LARGE_IN_16_BITS = 2.5e9, 7e9
"""Multiplications from which on ours is faster in a loop over a GPU, which mostly waits for Python; on an H200."""


def convolution(
    func: Callable[..., Tensor], *, for_compiler: bool = False, if_large: bool = False
) -> Callable[..., Tensor]:
    """One of torch's convolutions, plain or transposed, with a cheap second derivative.

    Padding by a word but "valid" may be uneven, and single samples have no batch axis: these are left to torch.

    Args:
        if_large: those of few multiplications are left to torch too.

    >>> x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    >>> torch.equal(convolution(torch.conv2d)(x, w, padding=1), torch.conv2d(x, w, padding=1))
    True
    >>> x, w = torch.randn(2, 3, 8), torch.randn(3, 4, 3)
    >>> torch.equal(convolution(torch.conv_transpose1d)(x, w), torch.conv_transpose1d(x, w))
    True
    """
    transposed = func in TRANSPOSED
    dims = TRANSPOSED[func] if transposed else PLAIN[func]
    names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
    apply = (_Convolve if for_compiler else _ConvolveEagerly).apply

    def call(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *rest: Any,
        **named: Any,
    ) -> Tensor:
        padding = 0 if padding == "valid" else padding
        if isinstance(padding, str) or input.dim() != dims + 2:
            return func(input, weight, bias, stride, padding, *rest, **named)
        given = {
            "dilation": (1,) * dims,
            "output_padding": (0,) * dims,
            "groups": 1,
            **dict(zip(names, rest, strict=False)),
            **named,
        }
        lengths = (stride, padding, given["dilation"], given["output_padding"])
        stride, padding, dilation, output_padding = (
            length if isinstance(length, tuple) and len(length) == dims else each(length, dims) for length in lengths
        )
        groups, kind = given["groups"], input.device.type
        if if_large:
            # Each input pixel meets each weight of its channel, once in `stride` pixels; edges are not counted apart.
            met = weight.numel() / (weight.shape[0] if transposed else weight.shape[1] * groups * math.prod(stride))
            if input.numel() * met < (LARGE_IN_16_BITS if in_16_bits(input) else LARGE):
                return func(input, weight, bias, stride, padding, *rest, **named)
        if torch.is_autocast_enabled(kind):  # autocast does not look inside our functions
            dtype = torch.get_autocast_dtype(kind)
            input, weight, bias = input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        y: Tensor = apply(input, weight, bias, Geometry(stride, padding, dilation, transposed, output_padding, groups))
        return y

    return call


def each(value: Any, dims: int) -> tuple[int, ...]:
    """One number for all dimensions, or one for each.

    >>> each(2, 3), each((1, 2), 2)
    ((2, 2, 2), (1, 2))
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def in_16_bits(x: Tensor) -> bool:
    """Whether a convolution of x is computed with 16 bits, by its type or by autocast.

    >>> in_16_bits(torch.ones(1)), in_16_bits(torch.ones(1, dtype=torch.bfloat16))
    (False, True)
    """
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind).itemsize == 2
    return autocast or x.itemsize == 2


# What shapes cuDNN is fast at.
#
# Tensor cores read channels in groups of eight: with 16 bits, images of 3 channels are given 8, the others 0. For a
# kernel of one pixel that moves in strides, the pixels that count are taken out first: cuDNN falls back to kernels that
# take up to seven times as long otherwise. And of a kernel that sees one pixel and padding around it, only the weights
# on that pixel are used: torch is of two minds about the memory layout of the others' gradient.


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
