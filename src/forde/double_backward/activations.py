"""ReLU, GELU and SiLU with second derivatives of few passes over memory, and cotangents in the order of activations.

Images run through a network with channels last. Cotangents often come back with channels first: from the exchange,
whose vectors are flattened images, and from averages over an image, whose derivative torch writes so. A CPU's
pointwise and BatchNorm kernels are ten times slower on tensors in different orders than on equal ones, and whatever
they write goes on in the wrong order (`in_layout_of`).

ReLU's second derivative in torch adds a tensor of zeros; this one does not. Of GELU and SiLU:

With f', the first derivative, from torch's kernel,

    f(x)        ∂x: g f'(x)
    g f'(x)     ∂g: v f'(x)        ∂x: v g f''(x)

    GELU: f'' = (2 − x²) φ(x)                  φ the density of the normal distribution
    SiLU: f'' = σ(1 − σ)(2 + x(1 − 2σ))        σ = 1/(1 + e^(−x))

torch's own is a chain of a dozen operations that are recorded for a third derivative, which nobody takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

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


class _Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        out = x.relu_() if inplace else x.relu()
        ctx.save_for_backward(out)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None]:
        (g,), (out,) = cotangents, ctx.saved_tensors
        if g is None:
            return None, None
        g = g if g.stride() == out.stride() else in_layout_of(g, out)
        return torch.ops.aten.threshold_backward(g, out.detach(), 0), None


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.relu`.

    >>> relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    rectified: Tensor = _Rectify.apply(x, inplace)
    return rectified


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        ctx.set_materialize_grads(False)
        return function(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None]:
        (g,), (x,) = cotangents, ctx.saved_tensors
        return None if g is None else _Slope.apply(in_layout_of(g, x), x, ctx.function), None


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(g, x)
        ctx.function = function
        return SLOPES[function](g, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        g, x = ctx.saved_tensors
        v = in_layout_of(cotangents[0], x)
        to_x = CURVATURES[ctx.function](x).mul_(v).mul_(g) if ctx.needs_input_grad[1] else None
        return SLOPES[ctx.function](v, x), to_x, None


def _curvature_of_gelu(x: Tensor) -> Tensor:
    square = x.square()
    density = square.mul(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
    return square.neg_().add_(2).mul_(density)


def _curvature_of_silu(x: Tensor) -> Tensor:
    sigmoid = x.sigmoid()
    rest = sigmoid.mul(-2).add_(1).mul_(x).add_(2)
    return rest.mul_(sigmoid).mul_(sigmoid.neg_().add_(1))


SLOPES: dict[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]] = {
    F.gelu: torch.ops.aten.gelu_backward,
    F.silu: torch.ops.aten.silu_backward,
}
CURVATURES = {F.gelu: _curvature_of_gelu, F.silu: _curvature_of_silu}


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """As `torch.nn.functional.gelu`; its approximation by a hyperbolic tangent is left to torch.

    >>> x = torch.randn(5)
    >>> torch.equal(gelu(x), F.gelu(x))
    True
    """
    return F.gelu(input, approximate=approximate) if approximate != "none" else _activate(input, F.gelu)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.silu`; in place it is left to torch.

    >>> x = torch.randn(5)
    >>> torch.equal(silu(x), F.silu(x))
    True
    """
    return F.silu(input, inplace=True) if inplace else _activate(input, F.silu)


def _activate(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    if x.itemsize < 4:  # torch computes derivatives of halves in float32
        return function(x)
    y: Tensor = _Activate.apply(x, function)
    return y
