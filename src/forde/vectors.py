"""Unit vectors, used by the input-gradient space and by the kernels on the sphere."""

from __future__ import annotations

from torch import Tensor


def unit(vectors: Tensor, eps: float = 1e-24) -> Tensor:
    """v / √(‖v‖² + eps) along the last axis; a zero vector stays zero.

    >>> import torch
    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return vectors * (vectors.square().sum(-1, keepdim=True) + eps).rsqrt()
