"""Deep ensembles (Lakshminarayanan et al. 2017, https://arxiv.org/abs/1612.01474):  θ_i ← argmin loss_i + prior."""

from forde.methods.base import Method
from forde.methods.registry import register


@register("deep-ensemble")
def deep_ensemble(*, shared_head: bool = False) -> Method:
    """Independent members: no repulsion."""
    return Method(shared_head=shared_head)
