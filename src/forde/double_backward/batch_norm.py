"""BatchNorm in training mode with a cheap second derivative.

The formulas are those of `batch_norm_for_compiler.py`, which writes them out for a compiler. Here both derivatives are
calls of torch's kernels, because each pass over memory and each small operation counts by itself:

    out, μ, r      BatchNorm's kernel, which also moves the running statistics
    gy, Σgx̂, Σg    its gradient's kernel
    ∂g, Σvx̂, Σv    the same on v, since ∂g has the form of gy
    Σv(g − ⟨g⟩)    the same kernel, asked for w's gradient only: one pass that writes nothing
    ∂y             a sum of v, g and y, with a number per channel each

Cotangents are brought into the activations' order of memory first (`in_layout_of`).

Where several processes hold a batch together, or members are stacked, BatchNorm is composed of torch's own operations
(`composed`). Every process sends mean and variance of its own part, and all combine them:

    μ = (1/d) Σ_r μ_r        σ² = (1/d) Σ_r (σ_r² + (μ_r − μ)²)

The sum over processes is linear and its own adjoint, so a function whose derivative is the same sum again has
derivatives of every order: a sample's gradient reaches the samples of other processes through μ and σ, as in one
process. All must run their backward passes together, with the same operations in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forde.distributed.mesh import Axis
from forde.double_backward.activations import in_layout_of
from forde.torch_private import batch_norm_in_training


class BatchNorm(NamedTuple):
    """Arguments of `torch.nn.functional.batch_norm`."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


class _InTraining(torch.autograd.Function):
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
        g, y, weight, mean, inverse, sum_gx, sum_g = ctx.saved_tensors
        to_g = to_y = to_w = None
        per_channel = (1, -1, *[1] * (y.dim() - 2))
        if v is not None:
            n = y.numel() // y.shape[1]
            v = in_layout_of(v, y)
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
            rest = (of_v * sum_v).addcmul_(of_g, sum_g).div_(n).addcmul_(of_y, mean).view(per_channel)
            terms = [
                (t.float() if t.itemsize < 4 else t, f.view(per_channel)) for t, f in ((v, of_v), (g, of_g), (y, of_y))
            ]
            to_y = torch.addcmul(rest, *terms[0], value=-1)
            to_y.addcmul_(*terms[1], value=-1).addcmul_(*terms[2], value=-1)
            to_w = None if weight is None else s.mul_(inverse)
        if of_gw is not None:  # gw = Σ g x̂
            to_g = plus(to_g, spread(of_gw * inverse, y) * (wide(y) - spread(mean, y)))
            to_y = plus(to_y, _project(g, y, of_gw, mean, inverse)[0])
        if of_gb is not None:  # gb = Σ g
            to_g = plus(to_g, of_gb.view(per_channel).expand_as(y))
        return None if to_g is None else to_g.to(g.dtype), None if to_y is None else to_y.to(y.dtype), to_w, None, None


class _Statistics(torch.autograd.Function):
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


def in_training(call: BatchNorm, *, differentiable: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """As `torch.nn.functional.batch_norm(training=True)` on `[B, C, ...]`, and μ and r `[C]`.

    Args:
        call: its arguments; the running statistics are moved.
        differentiable: whether gradients flow to y through the μ and r that are returned. The output then has torch's
            own second derivative, which is slow: what is differentiated twice is normalised by μ and r in another call.

    >>> y = torch.randn(8, 3, 4, 4)
    >>> expected = torch.nn.functional.batch_norm(y, None, None, training=True)
    >>> torch.equal(in_training(BatchNorm(y, None, None))[0], expected)
    True
    """
    y, running_mean, running_var, weight, bias, _, momentum, eps = call
    statistics = () if running_mean is None or running_var is None else (running_mean, running_var)
    settings = (*statistics, True, momentum, eps)
    if differentiable:
        out, mean, inverse = batch_norm_in_training(y, weight, bias, *settings)
        return out, *_Statistics.apply(y, mean, inverse)
    found: tuple[Tensor, Tensor, Tensor] = _InTraining.apply(y, weight, bias, *settings)
    return found


class _SumOverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Axis) -> Tensor:
        ctx.processes = processes
        return processes.sum(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _SumOverProcesses.apply(gradients[0], ctx.processes), None


def composed(call: BatchNorm, processes: Axis | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm of `[B, C, ...]` by torch's own operations, over the parts of all processes, and its μ and r `[C]`.

    >>> _, mean, inverse = composed(BatchNorm(torch.tensor([[1.0], [3.0]]), None, None, eps=0.0))
    >>> mean, inverse
    (tensor([2.]), tensor([1.]))
    """
    y, shards = wide(call.input), 1 if processes is None else processes.size
    n = shards * (y.numel() // y.shape[1])
    variance, mean = torch.var_mean(y, others(y), correction=0)
    if processes is not None:
        # Each process fills its own row: one message instead of one for the mean and, after it, one for the variance.
        # Not written by index: a trace would keep the 1 as a constant, and constants belong to one member only.
        own_row = (torch.arange(shards, device=y.device) == processes.index).to(y.dtype).view(-1, 1, 1)
        rows = _SumOverProcesses.apply(own_row * torch.stack([mean, variance]), processes)  # [d, 2, C]
        means, variances = rows.unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
    move_running_stats(call, mean, variance, n)
    inverse = (variance + call.eps).rsqrt()
    return by_statistics(call, mean, inverse), mean, inverse


def by_statistics(call: BatchNorm, mean: Tensor, inverse: Tensor) -> Tensor:
    """BatchNorm of `[B, C, ...]` by given μ and r `[C]`.

    >>> by_statistics(BatchNorm(torch.tensor([[5.0]]), None, None), torch.tensor([1.0]), torch.tensor([0.5]))
    tensor([[2.]])
    """
    y, scale = call.input, inverse if call.weight is None else inverse * call.weight
    out = (wide(y) - spread(mean, y)) * spread(scale, y)
    return (out if call.bias is None else out + spread(call.bias, y)).to(y.dtype)


def move_running_stats(call: BatchNorm, mean: Tensor, variance: Tensor, n: int) -> None:
    """Move a layer's running statistics towards μ and σ² `[C]` of n values each."""
    with torch.no_grad():
        for running, found in ((call.running_mean, mean), (call.running_var, variance * (n / (n - 1)))):
            if running is not None:  # not `lerp_`, which `torch.vmap` has no rule for
                running.mul_(1 - call.momentum).add_(found.to(running.dtype), alpha=call.momentum)


def wide(tensor: Tensor) -> Tensor:
    """In float32 or better, for sums.

    >>> wide(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.itemsize < 4 else tensor


def others(y: Tensor) -> list[int]:
    """All axes of y `[B, C, ...]` but the channels'.

    >>> others(torch.ones(2, 3, 4, 4))
    [0, 2, 3]
    """
    return [axis for axis in range(y.dim()) if axis != 1]


def spread(channels: Tensor, y: Tensor) -> Tensor:
    """`[C]` → `[1, C, 1, ...]`, to be multiplied with y `[B, C, ...]`.

    >>> spread(torch.ones(3), torch.ones(2, 3, 4, 4)).shape
    torch.Size([1, 3, 1, 1])
    """
    return channels.view(1, -1, *[1] * (y.dim() - 2))


def through_statistics(
    y: Tensor, mean: Tensor, inverse: Tensor, of_mean: Tensor | None, of_inverse: Tensor | None
) -> Tensor | None:
    """∂y for cotangents `[C]` of BatchNorm's μ and r = (σ² + eps)^(−1/2): (of_μ − of_r r³(y − μ)) / n.

    >>> y = torch.tensor([[1.0], [3.0]])
    >>> through_statistics(y, torch.tensor([2.0]), torch.ones(1), None, torch.ones(1))
    tensor([[ 0.5000],
            [-0.5000]])
    """
    n = y.numel() // y.shape[1]
    to_y = None if of_mean is None else spread(of_mean / n, y).expand_as(y)
    if of_inverse is not None:
        through_inverse = spread(of_inverse * inverse**3 / -n, y) * (wide(y) - spread(mean, y))
        to_y = through_inverse if to_y is None else to_y + through_inverse
    return to_y


def plus(total: Tensor | None, term: Tensor) -> Tensor:
    """A sum that may not have begun.

    >>> plus(None, torch.ones(1))
    tensor([1.])
    """
    return term if total is None else total + term
