"""Stein variational gradient descent (Liu & Wang 2016, https://arxiv.org/abs/1608.04471).

    φ_i = (1/M) Σ_j [ K_ij ∇ log π(z_j) − ∇_{z_i} K_ij ]

Members share driving forces as well as repelling each other: the loss gradients are mixed with weights K_ij/M.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from forde.kernels.base import Kernel
from forde.rules.base import Forces, Rule, compare, gradient_sums


@dataclass(frozen=True)
class SVGD(Rule):
    """Mix driving forces by similarity and repel; needs a symmetric kernel (bandwidth per sample, global or fixed).

    >>> import torch
    >>> from forde.kernels import RBF
    >>> forces = SVGD()(RBF(bandwidth="global"), torch.randn(3, 1, 5))
    >>> forces.mixing.shape, bool(forces.cotangent.sum(0).abs().max() < 1e-6)
    (torch.Size([3, 3]), True)
    """

    needs_symmetric_kernel = True
    mixes = True

    def __call__(self, kernel: Kernel, z: Tensor) -> Forces:
        live, K, bandwidth = compare(kernel, z)
        members = len(z)
        return Forces(
            gradient_sums(live, K) / members,
            K.detach().sum(1) / members,
            mixing=K.detach() / members,
            bandwidth=bandwidth,
        )
