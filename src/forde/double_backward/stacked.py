"""Linear layers and ReLU of all members at once, inside `torch.vmap`.

torch maps y = xWᵀ + b over members to a product and a sum, whose weight gradient (xᵀg)ᵀ has to be transposed in memory,
and gives ReLU a second derivative that adds zeros. Here, for X `[M, B, I]` and W `[M, O, I]`:

    Y = XWᵀ + b        ∂X: GW        ∂W: GᵀX        ∂b: Σ_b G

one call each, in the order of memory in which the parameters are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.double_backward.activations import relu
from forde.torch_private import stacks, wanted


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.bmm(x, w.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, w.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, w), (of_x, of_w, of_bias) = gradients, ctx.saved_tensors, wanted(ctx, 3)
        return torch.bmm(g, w) if of_x else None, torch.bmm(g.mT, x) if of_w else None, g.sum(1) if of_bias else None


def linear_of_all(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer of each member: `[M, B, I]`, `[M, O, I]`, `[M, O]` → `[M, B, O]`.

    >>> linear_of_all(torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(2, 5)).shape
    torch.Size([2, 3, 5])
    """
    y: Tensor = _Linear.apply(x, w, bias)
    return y


def linear(*args: Any, **kwargs: Any) -> Tensor:
    """As `F.linear`, inside `torch.vmap`.

    >>> x, w = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    >>> torch.allclose(torch.vmap(linear)(x, w), x @ w.mT, atol=1e-6)
    True
    """
    if not kwargs and all(map(_is_stack, args)) and args[0].dim() == 2:
        return _together(linear_of_all, *args)
    return F.linear(*args, **kwargs)


def rectifier(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`F.relu` or one of its other names, inside `torch.vmap`."""

    def call(*args: Any, **kwargs: Any) -> Tensor:
        if len(args) == 1 and not kwargs.get("inplace") and _is_stack(args[0]):
            return _together(relu, args[0])
        return func(*args, **kwargs)

    return call


def embedding(  # noqa: PLR0917  (torch's own order of arguments)
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """As `F.embedding`; `torch.vmap` would keep the gradient of the padding's row from the first member only."""
    rows = F.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if padding_idx is None:
        return rows
    padding = padding_idx % weight.shape[0]
    return torch.where((input == padding).unsqueeze(-1), rows.detach(), rows)


def _is_stack(tensor: Tensor | None) -> bool:
    """Whether a tensor inside one `vmap` has a value for each member, and members are the first axis of all values."""
    if tensor is None:
        return True
    known = stacks()
    if known is None or not known.is_stack(tensor) or tensor.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return not known.is_stack(known.whole(tensor)) and known.axis(tensor) == 0


def _together(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    """The function of whole stacks, given what a function inside `vmap` sees of them."""
    known = stacks()
    assert known is not None
    level = next(known.level(tensor) for tensor in tensors if tensor is not None)
    whole = [None if tensor is None else known.whole(tensor) for tensor in tensors]
    with known.outside():
        result = function(*whole)
    return known.seen_inside(result, 0, level)
