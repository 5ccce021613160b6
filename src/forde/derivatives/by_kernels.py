"""BatchNorm and ReLU of which both derivatives are calls of torch's kernels: the plain engines' choice on a CPU.

The formulas are those of `derivatives/by_formulas.py`, which writes them out for a compiler. Here each pass over memory
and each small operation counts by itself:

    out, μ, r      BatchNorm's kernel, which also moves the running statistics
    gy, Σgx̂, Σg    its gradient's kernel
    ∂g, Σvx̂, Σv    the same on v, since ∂g has the form of gy
    Σv(g − ⟨g⟩)    the same kernel, asked for w's gradient only: one pass that writes nothing
    ∂y             a sum of v, g and y, with a number per channel each

Cotangents are brought into the activations' order of memory first (`derivatives/layout.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forde.derivatives.channels import BatchNorm, plus, refuse_one_value, spread, through_statistics, wide
from forde.derivatives.layout import in_layout_of
from forde.torch_private import batch_norm_in_training


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor | None, bias: Tensor | None, *settings: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, mean, inverse = batch_norm_in_training(y, weight, bias, *settings)
        ctx.save_for_backward(y, weight, mean, inverse)
        ctx.mark_non_differentiable(mean, inverse)
        ctx.set_materialize_grads(False)
        return out, mean, inverse

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        g, wanted = cotangents[0], ctx.needs_input_grad
        if g is None:
            return (None,) * len(wanted)
        y, weight, mean, inverse = ctx.saved_tensors
        gy, gw, gb = _Gradient.apply(g, y, weight, mean, inverse)
        return gy, gw if wanted[1] else None, gb if wanted[2] else None, *[None] * (len(wanted) - 3)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, g: Tensor, y: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        g = in_layout_of(g, y)
        gy, sum_gx, sum_g = _project(g, y, weight, mean, inverse)
        ctx.save_for_backward(g, y, weight, mean, inverse, sum_gx, sum_g)
        ctx.set_materialize_grads(False)
        return gy, sum_gx, sum_g

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        v, of_gw, of_gb = cotangents
        g, y, _, mean, inverse, _, _ = ctx.saved_tensors
        to_g, to_y, to_w = (None, None, None) if v is None else _adjoint(in_layout_of(v, y), *ctx.saved_tensors)
        if of_gw is not None:  # gw = Σ g x̂
            to_g = plus(to_g, spread(of_gw * inverse, y) * (wide(y) - spread(mean, y)))
            to_y = plus(to_y, _project(g, y, of_gw, mean, inverse)[0])
        if of_gb is not None:  # gb = Σ g
            to_g = plus(to_g, spread(of_gb, y).expand_as(y))
        return None if to_g is None else to_g.to(g.dtype), None if to_y is None else to_y.to(y.dtype), to_w, None, None


class _Tell(torch.autograd.Function):
    """μ and r, which the kernel has found already, as functions of y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(y, mean, inverse)
        ctx.set_materialize_grads(False)
        return mean.view_as(mean), inverse.view_as(inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None, None]:
        y, mean, inverse = ctx.saved_tensors
        to_y = through_statistics(y, mean, inverse, *cotangents)
        return None if to_y is None else to_y.to(y.dtype), None, None


def _project(
    g: Tensor, y: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """w r (g − ⟨g⟩ − x̂⟨g x̂⟩) in the shape of y, Σ g x̂ `[C]` and Σ g `[C]`."""
    scale = torch.ones_like(mean) if weight is None else weight
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        g, y, scale, None, None, mean, inverse, True, 0.0, (True, True, True)
    )
    return gradients


def _adjoint(  # noqa: PLR0917
    v: Tensor,
    g: Tensor,
    y: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    sum_gx: Tensor,
    sum_g: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """∂g and ∂y in the shape of y, ∂w `[C]`, for v the cotangent of gy."""
    n = y.numel() // y.shape[1]
    to_g, sum_vx, sum_v = _project(v, y, weight, mean, inverse)
    ones = torch.ones_like(mean)
    covariance = torch.ops.aten.native_batch_norm_backward(
        v, g, ones, None, None, sum_g / n, ones, True, 0.0, (False, True, False)
    )[1]
    both = sum_vx * sum_gx
    s = covariance.sub_(both, alpha=1 / n)  # n times that of the formula
    factor = inverse.square().div_(n)
    factor = factor if weight is None else factor.mul_(weight)
    of_v, of_g = factor * sum_gx, factor * sum_vx
    of_y = s.sub(both, alpha=2 / n).mul_(factor).mul_(inverse)
    rest = (of_v * sum_v).addcmul_(of_g, sum_g).div_(n).addcmul_(of_y, mean)
    to_y = torch.addcmul(spread(rest, y), wide(v), spread(of_v, y), value=-1)
    to_y.addcmul_(wide(g), spread(of_g, y), value=-1).addcmul_(wide(y), spread(of_y, y), value=-1)
    return to_g, to_y, None if weight is None else s.mul_(inverse)


def normalise(call: BatchNorm, *, telling: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """As `torch.nn.functional.batch_norm(training=True)` on `[B, C, ...]`, and μ and r `[C]`.

    Args:
        call: its arguments; the running statistics are moved.
        telling: whether μ and r are functions of y, or numbers. If so, what will be differentiated twice has to be
            normalised elsewhere, by these: the second derivative of the output is torch's own here, and slow.

    >>> y = torch.randn(8, 3, 4, 4)
    >>> expected = torch.nn.functional.batch_norm(y, None, None, training=True)
    >>> torch.equal(normalise(BatchNorm(y, None, None))[0], expected)
    True
    """
    y, running_mean, running_var, weight, bias, _, momentum, eps = call
    refuse_one_value(y)
    statistics = () if running_mean is None or running_var is None else (running_mean, running_var)
    settings = (*statistics, True, momentum, eps)
    if telling:
        out, mean, inverse = batch_norm_in_training(y, weight, bias, *settings)
        return out, *_Tell.apply(y, mean, inverse)
    found: tuple[Tensor, Tensor, Tensor] = _Normalise.apply(y, weight, bias, *settings)
    return found


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
        return torch.ops.aten.threshold_backward(in_layout_of(g, out), out.detach(), 0), None


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """As `torch.nn.functional.relu`, whose second derivative adds a tensor of zeros; this one's does not.

    >>> relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    rectified: Tensor = _Rectify.apply(x, inplace)
    return rectified
