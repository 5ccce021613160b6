"""Numbers per channel beside images `[B, C, ...]`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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


def wide(tensor: Tensor) -> Tensor:
    """In float32 or better, for sums.

    >>> import torch
    >>> wide(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.itemsize < 4 else tensor


def spread(channels: Tensor, y: Tensor) -> Tensor:
    """`[C]` → `[1, C, 1, ...]`, to be multiplied with y `[B, C, ...]`.

    >>> import torch
    >>> spread(torch.ones(3), torch.ones(2, 3, 4, 4)).shape
    torch.Size([1, 3, 1, 1])
    """
    return channels.view(1, -1, *[1] * (y.dim() - 2))


def affine(y: Tensor, mean: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """(y − μ)s + b for y `[B, C, ...]` and numbers `[C]`, in the dtype of y.

    >>> import torch
    >>> affine(torch.tensor([[5.0]]), torch.tensor([1.0]), torch.tensor([0.5]), None)
    tensor([[2.]])
    """
    out = (wide(y) - spread(mean, y)) * spread(scale, y)
    return (out if bias is None else out + spread(bias, y)).to(y.dtype)


def through_statistics(
    y: Tensor, mean: Tensor, inverse: Tensor, of_mean: Tensor | None, of_inverse: Tensor | None
) -> Tensor | None:
    """∂y for cotangents `[C]` of BatchNorm's μ and r = (σ² + eps)^(−1/2): (of_μ − of_r r³(y − μ)) / n.

    >>> import torch
    >>> y = torch.tensor([[1.0], [3.0]])
    >>> through_statistics(y, torch.tensor([2.0]), torch.ones(1), None, torch.ones(1))
    tensor([[ 0.5000],
            [-0.5000]])
    """
    n = y.numel() // y.shape[1]
    to_y = None if of_mean is None else spread(of_mean / n, y).expand_as(y)
    if of_inverse is not None:
        to_y = plus(to_y, spread(of_inverse * inverse**3 / -n, y) * (wide(y) - spread(mean, y)))
    return to_y


def refuse_one_value(y: Tensor) -> None:
    """As torch does where a channel of `[B, C, ...]` has one value only, of which there is no variance."""
    if y.numel() <= y.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {y.size()}")


def plus(total: Tensor | None, term: Tensor) -> Tensor:
    """A sum that may not have begun.

    >>> import torch
    >>> plus(None, torch.ones(1))
    tensor([1.])
    """
    return term if total is None else total + term
