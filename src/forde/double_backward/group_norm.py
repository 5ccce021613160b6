"""GroupNorm and InstanceNorm, which normalise rows of K values, with a cheap second derivative.

With x̂ = (x − μ)r, r = (σ² + eps)^(−1/2), ⟨·⟩ the mean over a row and Ph = h − ⟨h⟩ − x̂⟨h x̂⟩,

    gx = r Ph                     the gradient, h the cotangent of x̂

and for v the cotangent of gx,

    ∂h: r Pv
    ∂x: −r⟨h x̂⟩ ∂h − r⟨v x̂⟩ gx − (⟨∂h gx⟩ + eps r⁴⟨h x̂⟩⟨v x̂⟩) x̂

of which rP is torch's kernel for the gradient of LayerNorm, both times. torch's own second derivative is a chain of
some forty operations, each a pass over memory: engines without a compiler gain from this. (That of LayerNorm itself is
not, and is faster than this one.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        out, mean, inverse = torch.ops.aten.native_layer_norm(x, x.shape[1:], None, None, eps)
        ctx.save_for_backward(x, out, mean, inverse)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, None]:
        (h,), (x, out, mean, inverse) = cotangents, ctx.saved_tensors
        return None if h is None else _Gradient.apply(h, x, out.detach(), mean, inverse, ctx.eps), None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, h: Tensor, x: Tensor, out: Tensor, mean: Tensor, inverse: Tensor, eps: float
    ) -> Tensor:
        h = h.contiguous()
        gx = _project(h, x, mean, inverse)
        ctx.save_for_backward(h, x, out, mean, inverse, gx)
        ctx.eps = eps
        return gx

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        h, x, out, mean, inverse, gx = ctx.saved_tensors
        v = cotangents[0].contiguous()
        to_h = _project(v, x, mean, inverse)
        mean_hx, mean_vx = _mean_product(h, out), _mean_product(v, out)
        of_out = _mean_product(to_h, gx).add_(inverse.pow(4) * mean_hx * mean_vx, alpha=ctx.eps)
        to_x = out * -of_out
        to_x.addcmul_(to_h, inverse * mean_hx, value=-1).addcmul_(gx, inverse * mean_vx, value=-1)
        return to_h, to_x, None, None, None, None


def _project(h: Tensor, x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    """r Ph for rows `[R, K]`."""
    gradient: Tensor = torch.ops.aten.native_layer_norm_backward(
        h, x, x.shape[1:], mean, inverse, None, None, (True, False, False)
    )[0]
    return gradient


def _mean_product(a: Tensor, b: Tensor) -> Tensor:
    """⟨a b⟩ over each row: `[R, K]` → `[R, 1]`."""
    return torch.linalg.vecdot(a, b).div_(a.shape[1]).unsqueeze(1)


def standardise(x: Tensor, eps: float) -> Tensor:
    """Each row of `[R, K]` less its mean, over its standard deviation.

    >>> standardise(torch.tensor([[1.0, 3.0]]), 1e-9)
    tensor([[-1.,  1.]])
    """
    standardised: Tensor = _Standardise.apply(x.contiguous(), eps)
    return standardised


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """As `torch.nn.functional.group_norm` on `[B, C, ...]`.

    >>> x = torch.randn(2, 6, 4, 4)
    >>> torch.allclose(group_norm(x, 3), F.group_norm(x, 3), atol=1e-6)
    True
    """
    if not _is_plain(input) or input.dim() < 2 or input.shape[1] % num_groups:
        return F.group_norm(input, num_groups, weight, bias, eps)
    rows = input.reshape(len(input) * num_groups, -1)
    if rows.shape[1] == 1:  # torch's to refuse
        return F.group_norm(input, num_groups, weight, bias, eps)
    over_places = [-1, *[1] * (input.dim() - 2)]
    weight, bias = (None if tensor is None else tensor.view(over_places) for tensor in (weight, bias))
    return _affine(standardise(rows, eps).view(input.shape), weight, bias)


def instance_norm(  # noqa: PLR0917  (torch's own order of arguments)
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """As `torch.nn.functional.instance_norm` on `[B, C, ...]`; with running statistics it is left to torch.

    >>> x = torch.randn(2, 3, 4, 4)
    >>> torch.allclose(instance_norm(x), F.instance_norm(x), atol=1e-6)
    True
    """
    alone = use_input_stats and running_mean is None and running_var is None
    if not alone or input.dim() < 3 or input.shape[2:].numel() == 1:
        return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return group_norm(input, input.shape[1], weight, bias, eps)


def _is_plain(x: Tensor) -> bool:
    """Whether torch itself would compute in the dtype of x (it widens halves)."""
    return x.itemsize >= 4 and not torch.is_autocast_enabled(x.device.type) and x.numel() > 0


def _affine(out: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is None:
        return out if bias is None else out + bias
    return out * weight if bias is None else torch.addcmul(bias, out, weight)
