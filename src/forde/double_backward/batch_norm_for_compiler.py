"""BatchNorm in training mode written out as formulas, for a compiler to merge into few passes over memory.

With x̂ = (y − μ)r, r = (σ² + eps)^(−1/2) and ⟨·⟩ the mean over a channel's n values,

    out = w x̂ + b
    gy  = w r (g − ⟨g⟩ − x̂⟨g x̂⟩)                 the gradient, g the cotangent of out

and for v the cotangent of gy, the adjoint of that line is one more set of channel means and one pointwise formula:

    ∂g: w r (v − ⟨v⟩ − x̂⟨v x̂⟩)
    ∂w: n r s                                       s = ⟨v g⟩ − ⟨v⟩⟨g⟩ − ⟨v x̂⟩⟨g x̂⟩
    ∂y: −w r² (⟨g x̂⟩(v − ⟨v⟩) + ⟨v x̂⟩(g − ⟨g⟩) + x̂(s − 2⟨v x̂⟩⟨g x̂⟩))

where ∂g has the form of gy. torch's own double backward is a chain of some thirty operations. Sums are in float32 or
better, whatever y is. `batch_norm.py` has the same without a compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forde.double_backward.batch_norm import (
    BatchNorm,
    move_running_stats,
    others,
    plus,
    spread,
    through_statistics,
    wide,
)
from forde.double_backward.batch_norm import (
    by_statistics as by_given,
)


class _InTraining(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, differentiable: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        variance, mean = torch.var_mean(wide(y), others(y), correction=0)
        inverse = (variance + eps).rsqrt()
        scale = written(inverse if weight is None else inverse * weight)
        ctx.save_for_backward(y, weight, mean, inverse, scale)
        ctx.mark_non_differentiable(*([variance] if differentiable else [mean, inverse, variance]))
        ctx.set_materialize_grads(False)
        return by_given(BatchNorm(y, None, None, None, bias), mean, scale), mean, inverse, variance

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        g, of_mean, of_inverse, _ = cotangents
        y, weight, mean, inverse, scale = ctx.saved_tensors
        gy = gw = gb = None
        if g is not None:
            gy, gw, gb = _Gradient.apply(g, y, weight, mean, inverse, scale)
        if (through := through_statistics(y, mean, inverse, of_mean, of_inverse)) is not None:
            gy = plus(gy, through).to(y.dtype)
        wanted = ctx.needs_input_grad
        return gy, gw if wanted[1] else None, gb if wanted[2] else None, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, g: Tensor, y: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gy, sum_gx, sum_g = _project(g, y, mean, inverse, scale)
        n = y.numel() // y.shape[1]
        ctx.save_for_backward(g, y, mean, inverse, scale, sum_g / n, sum_gx / n)
        ctx.set_materialize_grads(False)
        return gy, sum_gx, sum_g

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        v, of_gw, of_gb = cotangents
        g, y, mean, inverse, scale, mean_g, mean_gx = ctx.saved_tensors
        n = y.numel() // y.shape[1]
        to_g: Tensor | None = None
        to_y: Tensor | None = None
        to_w: Tensor | None = None
        if v is not None:
            mean_vg = (wide(v) * wide(g)).mean(others(y))
            to_g, sum_vx, sum_v = _project(v, y, mean, inverse, scale, beside=mean_vg)
            mean_v, mean_vx = sum_v / n, sum_vx / n
            covariance = mean_vg - mean_v * mean_g - mean_vx * mean_gx
            # ∂y is linear in v, g and y with a number per channel each.
            of_v, of_g = -scale * inverse * mean_gx, -scale * inverse * mean_vx
            of_y = -scale * inverse * inverse * (covariance - 2 * mean_vx * mean_gx)
            rest = -(of_v * mean_v + of_g * mean_g + of_y * mean)
            to_y = spread(written(rest), y)
            for term, factor in ((v, of_v), (g, of_g), (y, of_y)):
                to_y = to_y + wide(term) * spread(written(factor), y)
            to_w = inverse * covariance * n if ctx.needs_input_grad[2] else None
        if of_gw is not None:  # gw = Σ g x̂
            to_g = plus(to_g, spread(of_gw * inverse, y) * (wide(y) - spread(mean, y)))
            to_y = plus(to_y, _project(g, y, mean, inverse, inverse * of_gw)[0])
        if of_gb is not None:  # gb = Σ g
            to_g = plus(to_g, spread(of_gb, y).expand_as(y))
        return None if to_g is None else to_g.to(g.dtype), None if to_y is None else to_y.to(y.dtype), to_w, *[None] * 3


def _project(  # noqa: PLR0917
    g: Tensor, y: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, beside: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """w r (g − ⟨g⟩ − x̂⟨g x̂⟩) in the shape of y, Σ g x̂ `[C]` and Σ g `[C]`, where `scale` is w r.

    Args:
        beside: another channel mean over g `[C]`, which the compiler shall form in the same pass over memory.
    """
    n, centred = y.numel() // y.shape[1], wide(y) - spread(mean, y)
    sum_g, sum_gx = wide(g).sum(others(y)), (wide(g) * centred).sum(others(y)) * inverse
    if beside is not None:
        # Adds nothing, but what follows now waits for all three sums. Left alone, the compiler puts off the third to
        # a later pass, which reads v and g again.
        sum_g = sum_g + (beside - beside)
    of_y, rest = written(-scale * inverse * (sum_gx / n)), written(-scale * (sum_g / n))
    gy = spread(scale, y) * wide(g) + spread(of_y, y) * centred + spread(rest, y)
    return gy.to(y.dtype), sum_gx, sum_g


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return tensor.as_strided(tensor.shape, tensor.stride())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Tensor | None:
        return cotangents[0]


def written(tensor: Tensor) -> Tensor:
    """The same tensor, which the compiler writes to memory instead of computing it for each value that uses it.

    For numbers per channel this saves arithmetic; and what is made of few tensors is in turn not written to memory but
    computed anew, which for a large one saves more.
    """
    written: Tensor = _Written.apply(tensor)
    return written


def in_training(call: BatchNorm, *, differentiable: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """As `torch.nn.functional.batch_norm(training=True)` on `[B, C, ...]`, and μ and r `[C]`.

    Args:
        call: its arguments; the running statistics are moved.
        differentiable: whether gradients flow to y through the μ and r that are returned.

    >>> y = torch.randn(8, 3, 4, 4)
    >>> expected = torch.nn.functional.batch_norm(y, None, None, training=True)
    >>> torch.allclose(in_training(BatchNorm(y, None, None))[0], expected, atol=1e-6)
    True
    """
    y = call.input
    out, mean, inverse, variance = _InTraining.apply(y, call.weight, call.bias, call.eps, differentiable)
    move_running_stats(call, mean, variance, y.numel() // y.shape[1])
    return _marked(out), mean, inverse


def by_statistics(call: BatchNorm, mean: Tensor, inverse: Tensor) -> Tensor:
    """BatchNorm of `[B, C, ...]` by given μ and r `[C]`.

    >>> by_statistics(BatchNorm(torch.tensor([[5.0]]), None, None), torch.tensor([1.0]), torch.tensor([0.5]))
    tensor([[2.]])
    """
    scale = written(inverse if call.weight is None else inverse * call.weight)
    return _marked(by_given(call._replace(weight=None), mean, scale))


def _marked(normalised: Tensor) -> Tensor:
    """Tells a ReLU what it is behind."""
    normalised.from_batch_norm = True  # type: ignore[attr-defined]
    return normalised


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
