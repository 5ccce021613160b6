"""Repulsive deep ensembles (D'Angelo & Fortuin 2021, https://arxiv.org/abs/2106.11642) in weight and function space.

    weight-RDE     R_i = (1/N) ln Σ_j exp(−‖θ_i − θ_j‖²/h)
    function-RDE   R_i = (1/B) ln Σ_j exp(−‖f_i − f_j‖²/h) + (1/B) Σ ln(1 + a f_i²),   f = logits of the batch

with one bandwidth h = med/ln M over all pairs. The Cauchy prior with a = 1e-6 is what the FoRDE paper used.
"""

from typing import Literal

from forde.kernels import RBF, Bandwidth, Median
from forde.methods.base import Method
from forde.methods.registry import register
from forde.priors import Cauchy, Isotropic
from forde.spaces import Outputs, Weights

GLOBAL = Median("all")


@register("weight-rde")
def weight_rde(*, bandwidth: str | float | Bandwidth = GLOBAL) -> Method:
    """Repulsion between weights."""
    return Method(space=Weights(), kernel=RBF(bandwidth=bandwidth))


@register("function-rde")
def function_rde(
    *,
    bandwidth: str | float | Bandwidth = GLOBAL,
    of: Literal["logits", "probs"] = "logits",
    cauchy: float = 1e-6,
) -> Method:
    """Repulsion between outputs on the training batch, with a Cauchy prior on them."""
    return Method(space=Outputs(of=of), kernel=RBF(bandwidth=bandwidth), prior=(Cauchy(cauchy), Isotropic()))
