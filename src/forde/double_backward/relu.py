"""ReLU, whose second derivative in torch adds a tensor of zeros; these do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forde.double_backward.batch_norm_for_compiler import written
from forde.double_backward.layout import in_layout_of


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


class _RectifyForCompiler(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool) -> Tensor:
        ctx.from_input = hasattr(x, "from_batch_norm")
        before = x.clone() if inplace and ctx.from_input else x  # costs a compiled step nothing
        if inplace:
            ctx.mark_dirty(x)
        out = x.relu_() if inplace else x.relu()
        ctx.save_for_backward(before if ctx.from_input else out)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None]:
        (g,), (sign,) = cotangents, ctx.saved_tensors
        if g is None:
            return None, None
        gradient = torch.ops.aten.threshold_backward(g, sign.detach(), 0)
        return gradient if ctx.from_input else written(gradient), None


def relu_for_compiler(x: Tensor, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.relu`, for a compiler to merge.

    Behind BatchNorm the derivative is told from the input, which is a pointwise function of what BatchNorm's own
    derivatives read anyway. Elsewhere (where branches of a residual network meet) it is written to memory, to be read
    by all that follow instead of sign and cotangent.

    >>> relu_for_compiler(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    rectified: Tensor = _RectifyForCompiler.apply(x, inplace)
    return rectified
