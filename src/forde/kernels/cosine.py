"""Squared cosine (LIT, Ross et al. 2018, https://arxiv.org/abs/1806.08716): k = cos²(g_i, g_j).

It is 1 for parallel *and* anti-parallel vectors: as a penalty it pushes members to orthogonality, not to opposition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forde.kernels.base import Kernel, Similarity
from forde.vectors import unit


@dataclass(frozen=True)
class SquaredCosine(Kernel):
    """⟨u_i, u_j⟩² of unit vectors u.

    Args:
        eps: added to each squared length; with `joint`, to the product of the squared lengths.
        joint: ⟨g_i, g_j⟩²/(‖g_i‖²‖g_j‖² + eps), as in LIT's code (eps=1e-6 there).

    >>> g = torch.tensor([[[1.0, 0.0]], [[-2.0, 0.0]], [[0.0, 3.0]]])
    >>> SquaredCosine()(g, g).values.squeeze(-1)
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 1.]])
    """

    eps: float = 1e-24
    joint: bool = False

    def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
        frozen = frozen.detach()
        if not self.joint:
            live, frozen = unit(live, self.eps), unit(frozen, self.eps)
        values = torch.einsum("ibd,jbd->ijb", live, frozen).square()
        if self.joint:
            norms = torch.einsum("ib,jb->ijb", live.square().sum(-1), frozen.square().sum(-1))
            values = values / (norms + self.eps)
        return Similarity(values, None)
