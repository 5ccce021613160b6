"""What force follows from similarity: the contract of a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from forde.kernels.base import Kernel


@dataclass(frozen=True)
class Forces:
    """What the exchange between members returns; all of it detached."""

    cotangent: Tensor
    """`[M, S, D]` to be *added* to the loss gradient with respect to each representation: estimates ∇ log ρ(z_i)."""
    energy: Tensor
    """`[M]` the value that the repulsion lowers where there is one, for logging."""
    mixing: Tensor | None = None
    """`[M, M]` weights with which members share their loss gradients (SVGD); None: each follows its own."""
    bandwidth: Tensor | None = None
    """Mean bandwidth of the kernel `[]`, for logging; None for kernels that have none."""


class Rule(ABC):
    """Turns representations into forces."""

    needs_symmetric_kernel: bool = False
    log_density: bool = True
    """Whether forces estimate ∇ log ρ and so carry the space's 1/B or 1/N; False for plain penalties."""
    mixes: bool = False

    @abstractmethod
    def __call__(self, kernel: Kernel, z: Tensor) -> Forces:
        """Representations `[M, S, D]` → forces."""


def compare(kernel: Kernel, z: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Live representations, K_ij = (1/S) Σ_s k_ijs `[M, M]` with its graph, and the mean bandwidth `[]` if there is."""
    live = z.detach().requires_grad_()
    values, bandwidth = kernel.among(live)
    return live, values.mean(-1), None if bandwidth is None else bandwidth.mean()


def gradient_sums(live: Tensor, K: Tensor) -> Tensor:
    """G_i = Σ_j ∇_{z_i} K_ij: `[M, S, D]`."""
    return torch.autograd.grad(K.sum(), live)[0]


def identity_like(K: Tensor) -> Tensor:
    """I with the size, device and type of K `[M, M]`."""
    return torch.eye(len(K), device=K.device, dtype=K.dtype)
