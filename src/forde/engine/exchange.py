"""Phase 2, the only place where members meet: representations in, forces out. Cheap, and free of any network."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from forde.methods.base import Method
from forde.rules import Forces
from forde.rules.base import identity_like


def exchange(method: Method, z: Tensor, loss_gradients: Tensor | None, factor: float | Tensor) -> Forces:
    """Forces on representations `[M, S, D]`, multiplied by `factor` (the repulsion's scale and weight).

    >>> from forde import method
    >>> forces = exchange(method("forde-identity"), torch.randn(3, 4, 5), None, factor=0.25)
    >>> forces.cotangent.shape, forces.energy.shape
    (torch.Size([3, 4, 5]), torch.Size([3]))
    """
    assert method.space is not None and method.kernel is not None and method.rule is not None
    projection = method.space.project(z, loss_gradients)
    forces = method.rule(method.kernel, z if projection is None else projection.z)
    cotangent = factor * (forces.cotangent if projection is None else projection.pull_back(forces.cotangent, z))
    if forces.mixing is not None and method.space.mixes == "representation":
        # backward(loss_i) will bring member i's own δ_i; this turns it into Σ_j W_ij δ_j.
        assert loss_gradients is not None
        others = forces.mixing - identity_like(forces.mixing)
        cotangent = cotangent + torch.einsum("ij,jsd->isd", others, loss_gradients)
    return replace(forces, cotangent=cotangent, energy=factor * forces.energy)
