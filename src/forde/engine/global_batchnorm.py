"""BatchNorm over a batch that several processes hold together.

Every process sends the mean and the variance of its own part, and all combine them:

    μ = (1/d) Σ_r μ_r        σ² = (1/d) Σ_r (σ_r² + (μ_r − μ)²)

The sum over processes is linear and its own adjoint, so a function whose derivative is the same sum again has
derivatives of every order: a sample's gradient reaches the samples of other processes through μ and σ, as in one
process. All must run their backward passes together, with the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forde.derivatives.channels import BatchNorm, affine, refuse_one_value, wide
from forde.engine.mesh import Axis


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        total = x.clone(memory_format=torch.contiguous_format)
        axis.add_up(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(gradients[0], ctx.axis), None


class GlobalBatchNorm(TorchFunctionMode):
    """Inside, BatchNorm in training mode takes its statistics from the parts of all processes along an axis.

    >>> y = torch.randn(8, 3, 4, 4)
    >>> with GlobalBatchNorm(Axis()):
    ...     found = F.batch_norm(y, None, None, training=True)
    >>> torch.allclose(found, F.batch_norm(y, None, None, training=True), atol=1e-6)
    True
    """

    def __init__(self, axis: Axis) -> None:
        super().__init__()
        self.axis = axis

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and (call := BatchNorm(*args, **kwargs)).training:
            return normalise(self.axis, call)[0]
        return func(*args, **kwargs)


def normalise(axis: Axis, call: BatchNorm) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm of `[B, C, ...]` over the parts of all processes along an axis, and its μ and r `[C]`.

    >>> _, mean, inverse = normalise(Axis(), BatchNorm(torch.tensor([[1.0], [3.0]]), None, None, eps=0.0))
    >>> mean, inverse
    (tensor([2.]), tensor([1.]))
    """
    n = axis.size * (call.input.numel() // call.input.shape[1])
    if n <= 1:
        refuse_one_value(call.input)
    y = wide(call.input)
    variance, mean = torch.var_mean(y, [d for d in range(y.dim()) if d != 1], correction=0)
    # Each process fills its own row: one message instead of one for the mean and, after it, one for the variance.
    own_row = torch.zeros(axis.size, 1, 1, dtype=y.dtype, device=y.device)
    own_row[axis.index] = 1
    rows = _Sum.apply(own_row * torch.stack([mean, variance]), axis)  # [d, 2, C]
    means, variances = rows.unbind(1)
    mean = means.mean(0)
    variance = (variances + (means - mean).square()).mean(0)
    with torch.no_grad():
        if call.running_mean is not None:
            call.running_mean.lerp_(mean.to(call.running_mean.dtype), call.momentum)
        if call.running_var is not None:
            call.running_var.lerp_((variance * (n / (n - 1))).to(call.running_var.dtype), call.momentum)
    inverse = (variance + call.eps).rsqrt()
    scale = inverse if call.weight is None else inverse * call.weight
    return affine(call.input, mean, scale, call.bias), mean, inverse
