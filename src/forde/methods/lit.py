"""Local independence training (Ross et al. 2018, https://arxiv.org/abs/1806.08716).

    loss = Σ_i CE_i + λ (1/B) Σ_b Σ_{i<j} cos²(g_ib, g_jb),   g = input gradient of the true-class logit

`output="ce", reduction="sum", eps=1e-6, strength=0.01` is the authors' code, whose eps outweighs the gradients of a
well-fitted network, so that its cosine is not normalised in effect.
"""

from typing import Literal

from forde.arguments import Of
from forde.kernels import SquaredCosine
from forde.methods.base import Method
from forde.methods.registry import register
from forde.rules import Penalty
from forde.spaces import InputGradients
from forde.spaces.input_gradients import Scalar


@register("lit")
def lit(
    *,
    strength: float = 1.0,
    output: Scalar = "logit",
    reduction: Literal["mean", "sum"] = "mean",
    eps: float | None = None,
    of: Of = None,
) -> Method:
    """Penalty on squared cosines between input gradients: members become orthogonal."""
    kernel = SquaredCosine() if eps is None else SquaredCosine(eps=eps, joint=True)
    return Method(
        space=InputGradients(output=output, normalise=eps is None, of=of),
        kernel=kernel,
        rule=Penalty(strength, reduction),
    )
