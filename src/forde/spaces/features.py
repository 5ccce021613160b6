"""Feature space (Yashima et al. 2022, https://arxiv.org/abs/2206.00944): z_i = F(x; θ_i), an inner activation.

Projection. With ℓ_i = ∂(loss_i)/∂F_i and the Gram matrix A_pq = ⟨ℓ_p, ℓ_q⟩ = V diag(w) Vᵀ, the directions

    d_r = w_r^{-1/2} Σ_p V_pr ℓ_p

are orthonormal in R^{B·Q}; members are compared by ⟨F_i, d_r⟩ along the `projection` of largest w. They count as
constants: nothing differentiates through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from forde.errors import FordeError, unknown_name
from forde.spaces.base import FeatureLayer, Projection, Space, View

SMALLEST_KEPT = 1e-12
"""Directions whose eigenvalue is below this share of the largest are rounding noise and are dropped."""


@dataclass(frozen=True)
class Features(Space):
    """Members are compared by an activation on the training batch.

    Args:
        layer: name of a submodule whose output is used; by default the input of the last `nn.Linear` that is called.
        projection: number of loss-gradient directions to compare along; None compares all features.
        smallest: keep the directions of *smallest* eigenvalue, as the authors' code does by its sorting order.

    >>> Features(projection=5).needs_loss_gradient
    True
    """

    sample_axis: ClassVar[Literal[1, 2]] = 2
    takes_stacks = True

    layer: str | None = None
    projection: int | None = None
    smallest: bool = False

    def __post_init__(self) -> None:
        if self.projection is not None and self.projection < 1:
            raise FordeError(f"projection is {self.projection}, but at least 1 direction, or None, was expected.")

    @property
    def reads_labels(self) -> bool:  # type: ignore[override]
        return self.needs_loss_gradient

    @property
    def needs_loss_gradient(self) -> bool:  # type: ignore[override]
        return self.projection is not None

    def source(self, view: View) -> Tensor:
        assert view.features is not None
        return view.features

    def represent(self, view: View) -> Tensor:
        return self.source(view).flatten(-2).unsqueeze(-2)

    def project(self, z: Tensor, loss_gradients: Tensor | None) -> Projection | None:
        if self.projection is None or loss_gradients is None:
            return None
        basis = directions(loss_gradients.flatten(1), self.projection, smallest=self.smallest)
        # Member by member, as products of one shape: equal members stay equal to the last bit.
        return Projection(torch.stack([basis @ member for member in z.flatten(1)]).unsqueeze(1), basis)

    def feature_layer(self, network: nn.Module) -> FeatureLayer:
        if self.layer is None:
            return last_linear_of(network)
        if self.layer not in (names := dict(network.named_modules())):
            raise unknown_name("layer", self.layer, names)
        return FeatureLayer(self.layer, "output")


def last_linear_of(network: nn.Module) -> FeatureLayer:
    """The input of the last linear layer that a network calls; which one that is, a forward pass has to tell.

    >>> last_linear_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    FeatureLayer(name=None, side='input')
    """
    if not any(isinstance(module, nn.Linear) for module in network.modules()):
        raise FordeError(
            "the network has no linear layer whose input could serve as features; "
            "name a submodule with Features(layer='...')."
        )
    return FeatureLayer(None, "input")


def directions(gradients: Tensor, rank: int, *, smallest: bool = False) -> Tensor:
    """Orthonormal rows `[R, B·Q]`, R ≤ rank, spanning the dominant part of the rows of `gradients [M, B·Q]`.

    >>> basis = directions(torch.randn(4, 10), 2)
    >>> torch.allclose(basis @ basis.T, torch.eye(2), atol=1e-5)
    True
    """
    # Normalised first: late in training the gradients are so small that their Gram matrix underflows in float32.
    gradients = gradients / gradients.abs().amax().clamp_min(torch.finfo(gradients.dtype).tiny)
    eigenvalues, vectors = torch.linalg.eigh(gradients @ gradients.T)  # ascending
    kept = eigenvalues > SMALLEST_KEPT * eigenvalues[-1]
    eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
    chosen = slice(None, rank) if smallest else slice(max(len(eigenvalues) - rank, 0), None)
    return (vectors[:, chosen] / eigenvalues[chosen].sqrt()).T @ gradients
