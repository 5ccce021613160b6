"""Plain penalty on similarity (LIT, Ross et al. 2018, https://arxiv.org/abs/1806.08716).

    R = strength · Σ_{i<j} K_ij,   K_ij = (1/S) Σ_s k_ijs

Both members of a pair are pushed: for a symmetric kernel ∂R/∂z_i = strength · Σ_{j≠i} ∇_{z_i} k(z_i, z_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.kernels.base import Kernel
from forde.rules.base import Forces, Rule, compare, identity_like


@dataclass(frozen=True)
class Penalty(Rule):
    """Add the summed similarity of all pairs to the loss.

    Args:
        strength: λ; `energy` is each member's half share of its pairs.
        reduction: `"mean"` over the batch, or `"sum"` as in LIT's code (B times stronger).

    >>> from forde.kernels import SquaredCosine
    >>> g = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]]])
    >>> float(Penalty()(SquaredCosine(), g).energy.sum())
    1.0
    """

    strength: float = 1.0
    reduction: Literal["mean", "sum"] = "mean"
    needs_symmetric_kernel = True
    log_density = False

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise FordeError(f"reduction is {self.reduction!r}, but 'mean' or 'sum' was expected.")

    def __call__(self, kernel: Kernel, z: Tensor) -> Forces:
        live, K, bandwidth = compare(kernel, z)
        factor = self.strength * (z.shape[1] if self.reduction == "sum" else 1)
        others = factor * (K * (1 - identity_like(K))).sum(1)
        (cotangent,) = torch.autograd.grad(others.sum(), live)
        return Forces(cotangent, others.detach() / 2, bandwidth=bandwidth)
