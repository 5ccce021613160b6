"""Wasserstein gradient descent with a kernel density estimate (https://arxiv.org/abs/2306.02775, eq. 7–8).

∇ log ρ̂(z_i) = Σ_j ∇_{z_i} K_ij / Σ_j K_ij = ∇_{z_i} L_i,    L_i = ln Σ_j K_ij,  K_ij = (1/S) Σ_s k_ijs
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forde.kernels.base import Kernel
from forde.rules.base import Forces, Rule


@dataclass(frozen=True)
class WGD(Rule):
    """Descend ln Σ_j K_ij in the first argument, the others and the bandwidth held fixed.

    >>> from forde.kernels import RBF
    >>> WGD()(RBF(), torch.randn(3, 4, 5)).cotangent.shape
    torch.Size([3, 4, 5])
    """

    def __call__(self, kernel: Kernel, z: Tensor) -> Forces:
        live = z.detach().requires_grad_()
        values, bandwidth = kernel.among(live)
        K = values.mean(-1)
        # K_ii = 1 keeps the sum away from 0, except where a squared cosine meets zero vectors.
        energy = K.sum(1).clamp_min(torch.finfo(K.dtype).tiny).log()
        (cotangent,) = torch.autograd.grad(energy.sum(), live)
        return Forces(cotangent, energy.detach(), bandwidth=None if bandwidth is None else bandwidth.mean())
