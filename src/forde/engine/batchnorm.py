"""BatchNorm with a second derivative in two passes over memory.

With x̂ = (y − μ)r, r = (σ² + eps)^(−1/2) and ⟨·⟩ the mean over a channel's n values,

    out = w x̂ + b
    gy  = w r (g − ⟨g⟩ − x̂⟨g x̂⟩)                 the gradient, g the cotangent of out

and for v the cotangent of gy, the adjoint of that line is one more set of channel means and one pointwise formula:

    ∂g: w r (v − ⟨v⟩ − x̂⟨v x̂⟩)
    ∂w: n r s                                       s = ⟨v g⟩ − ⟨v⟩⟨g⟩ − ⟨v x̂⟩⟨g x̂⟩
    ∂y: −w r² (⟨g x̂⟩(v − ⟨v⟩) + ⟨v x̂⟩(g − ⟨g⟩) + x̂(s − 2⟨v x̂⟩⟨g x̂⟩))

torch's own double backward is a chain of some thirty operations; this takes one call of BatchNorm's gradient kernel
(∂g has the form of gy) and four simple ones. Sums are in float32 or better, whatever y is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, open_up: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if open_up:
            wide = _wide(y)
            variance, mean = torch.var_mean(wide, _others(y), correction=0)
            inverse = (variance + eps).rsqrt()
            out = (wide - _spread(mean, y)) * _spread(inverse, y)
            out = out if weight is None else out * _spread(weight, y)
            out = (out if bias is None else out + _spread(bias, y)).to(y.dtype)
        else:
            out, mean, inverse = torch.native_batch_norm(y, weight, bias, None, None, True, 0.0, eps)
            variance = inverse.pow(-2) - eps
        ctx.save_for_backward(y, weight, mean, inverse)
        ctx.open_up = open_up
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if cotangents[0] is None:
            return (None,) * 5
        gy, gw, gb = _Gradient.apply(cotangents[0], *ctx.saved_tensors, ctx.open_up)
        wanted = ctx.needs_input_grad
        return gy, gw if wanted[1] else None, gb if wanted[2] else None, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, g: Tensor, y: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, open_up: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        gy, sum_gx, sum_g = _project(g, y, weight, mean, inverse, open_up)
        n = y.numel() // y.shape[1]
        ctx.save_for_backward(g, y, weight, mean, inverse, sum_g / n, sum_gx / n)
        ctx.open_up = open_up
        ctx.set_materialize_grads(False)
        return gy, sum_gx, sum_g

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        v, of_gw, of_gb = cotangents
        g, y, weight, mean, inverse, mean_g, mean_gx = ctx.saved_tensors
        n, scale = y.numel() // y.shape[1], inverse if weight is None else inverse * weight
        to_g: Tensor | None = None
        to_y: Tensor | None = None
        to_w: Tensor | None = None
        if v is not None:
            to_g, sum_vx, sum_v = _project(v, y, weight, mean, inverse, ctx.open_up)
            mean_v, mean_vx = sum_v / n, sum_vx / n
            covariance = (_wide(v) * _wide(g)).mean(_others(y)) - mean_v * mean_g - mean_vx * mean_gx
            # ∂y is linear in v, g and y with a number per channel each.
            of_v, of_g = -scale * inverse * mean_gx, -scale * inverse * mean_vx
            of_y = -scale * inverse * inverse * (covariance - 2 * mean_vx * mean_gx)
            rest = -(of_v * mean_v + of_g * mean_g + of_y * mean)
            to_y = torch.addcmul(_spread(rest, y), _wide(v), _spread(of_v, y))
            to_y = (
                torch.addcmul(to_y, _wide(g), _spread(of_g, y))
                if ctx.open_up
                else to_y.addcmul_(_wide(g), _spread(of_g, y))
            )
            to_y = (
                torch.addcmul(to_y, _wide(y), _spread(of_y, y))
                if ctx.open_up
                else to_y.addcmul_(_wide(y), _spread(of_y, y))
            )
            to_w = None if weight is None else inverse * covariance * n
        if of_gw is not None:  # gw = Σ g x̂
            to_g = _sum(to_g, _spread(of_gw, y) * ((_wide(y) - _spread(mean, y)) * _spread(inverse, y)))
            to_y = _sum(to_y, _project(g, y, of_gw, mean, inverse, ctx.open_up)[0])
        if of_gb is not None:  # gb = Σ g
            to_g = _sum(to_g, _spread(of_gb, y).expand_as(y))
        return (
            None if to_g is None else to_g.to(g.dtype),
            None if to_y is None else to_y.to(y.dtype),
            to_w,
            None,
            None,
            None,
        )


def _project(  # noqa: PLR0917
    g: Tensor, y: Tensor, weight: Tensor | None, mean: Tensor, inverse: Tensor, open_up: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """w r (g − ⟨g⟩ − x̂⟨g x̂⟩) in the shape of y, Σ g x̂ `[C]` and Σ g `[C]`."""
    if not open_up:
        mask = (True, True, True)
        scale = torch.ones_like(mean) if weight is None else weight
        gy, sum_gx, sum_g = torch.ops.aten.native_batch_norm_backward(
            g, y, scale, None, None, mean, inverse, True, 0.0, mask
        )
        return gy, sum_gx, sum_g
    wide = _wide(g)
    normal = (_wide(y) - _spread(mean, y)) * _spread(inverse, y)
    sum_g, sum_gx = wide.sum(_others(y)), (wide * normal).sum(_others(y))
    n, scale = y.numel() // y.shape[1], inverse if weight is None else inverse * weight
    gy = _spread(scale, y) * (wide - _spread(sum_g / n, y) - normal * _spread(sum_gx / n, y))
    return gy.to(y.dtype), sum_gx, sum_g


def batch_norm(  # noqa: PLR0917  (torch's own order of arguments)
    y: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    open_up: bool = False,
) -> Tensor:
    """As `torch.nn.functional.batch_norm(training=True)` on `[B, C, ...]`; moves the running statistics.

    Args:
        open_up: write out the formulas, for a compiler to merge, instead of calling torch's kernels.

    >>> y = torch.randn(8, 3, 4, 4)
    >>> expected = torch.nn.functional.batch_norm(y, None, None, training=True)
    >>> torch.allclose(batch_norm(y, None, None), expected, atol=1e-6)
    True
    """
    out, mean, variance = _Normalise.apply(y, weight, bias, eps, open_up)
    n = y.numel() // y.shape[1]
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((variance * (n / (n - 1))).to(running_var.dtype), momentum)
    normalised: Tensor = out
    normalised.from_batch_norm = True  # type: ignore[attr-defined]
    return normalised


class _Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, remember_input: bool) -> Tensor:
        out = x.relu()
        ctx.save_for_backward(x if remember_input else out)
        return out

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        (sign,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(cotangents[0], sign.detach(), 0), None


def relu(x: Tensor, *, remember_input: bool = False) -> Tensor:
    """As `torch.relu`, whose second derivative adds a tensor of zeros; this one's does not.

    Args:
        remember_input: keep the input for the derivative instead of the output. Behind BatchNorm that is a pointwise
            function of what BatchNorm's own derivatives read anyway, and so costs a compiled step nothing to read.

    >>> relu(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    rectified: Tensor = _Rectify.apply(x, remember_input)
    return rectified


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.itemsize < 4 else tensor


def _others(y: Tensor) -> list[int]:
    """All axes but the channels'."""
    return [axis for axis in range(y.dim()) if axis != 1]


def _spread(channels: Tensor, y: Tensor) -> Tensor:
    """`[C]` → `[1, C, 1, ...]`."""
    return channels.view(1, -1, *[1] * (y.dim() - 2))


def _sum(total: Tensor | None, term: Tensor) -> Tensor:
    return term if total is None else total + term
