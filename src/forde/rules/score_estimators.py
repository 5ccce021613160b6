"""Score estimators for Wasserstein gradient descent (D'Angelo & Fortuin 2021, https://arxiv.org/abs/2106.11642).

With G_i = Σ_j ∇_{z_i} K_ij, estimates of ∇ log ρ(z_i):

    SGE   (K + ηI)⁻¹ G                            Stein gradient estimator (Li & Turner 2018)
    SSGE  Σ_q u_q (u_qᵀ K u_q)/λ_q² (u_qᵀ G)       spectral (Shi et al. 2018): eigenpairs (λ_q, u_q) of K + ηI

With all eigenpairs SSGE is K (K + ηI)⁻² G; both agree as η → 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.kernels.base import Kernel
from forde.rules.base import Forces, Rule, compare, gradient_sums, identity_like


@dataclass(frozen=True)
class SGE(Rule):
    """Ridge-regularised Stein estimate of the score.

    >>> from forde.kernels import RBF
    >>> SGE()(RBF(bandwidth="global"), torch.randn(3, 1, 5)).cotangent.shape
    torch.Size([3, 1, 5])
    """

    ridge: float = 0.01
    needs_symmetric_kernel = True

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise FordeError(f"ridge is {self.ridge}, but a positive number was expected: K alone may be singular.")

    def __call__(self, kernel: Kernel, z: Tensor) -> Forces:
        live, K, bandwidth = compare(kernel, z)
        G, K = gradient_sums(live, K), K.detach()
        score = torch.linalg.solve(K + self.ridge * identity_like(K), G.flatten(1)).view_as(G)
        return Forces(score, K.sum(1).log(), bandwidth=bandwidth)


@dataclass(frozen=True)
class SSGE(Rule):
    """Spectral Stein estimate of the score.

    Args:
        ridge: η, added to K before its eigendecomposition.
        n_eigenvalues: keep only this many of the largest; None keeps all.

    >>> from forde.kernels import RBF
    >>> SSGE(n_eigenvalues=2)(RBF(bandwidth="global"), torch.randn(3, 1, 5)).cotangent.shape
    torch.Size([3, 1, 5])
    """

    ridge: float = 0.01
    n_eigenvalues: int | None = None
    needs_symmetric_kernel = True

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise FordeError(f"ridge is {self.ridge}, but a positive number was expected: K alone may be singular.")
        if self.n_eigenvalues is not None and self.n_eigenvalues < 1:
            raise FordeError(f"n_eigenvalues is {self.n_eigenvalues}, but at least 1, or None for all, was expected.")

    def __call__(self, kernel: Kernel, z: Tensor) -> Forces:
        live, K, bandwidth = compare(kernel, z)
        G, K = gradient_sums(live, K), K.detach()
        eigenvalues, vectors = torch.linalg.eigh(K + self.ridge * identity_like(K))  # ascending
        if self.n_eigenvalues is not None:
            eigenvalues, vectors = eigenvalues[-self.n_eigenvalues :], vectors[:, -self.n_eigenvalues :]
        score = (K @ vectors / eigenvalues.square()) @ (vectors.T @ G.flatten(1))
        return Forces(score.view_as(G), K.sum(1).log(), bandwidth=bandwidth)
