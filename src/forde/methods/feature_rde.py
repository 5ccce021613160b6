"""Feature-space repulsion (Yashima et al. 2022, https://arxiv.org/abs/2206.00944).

    R_i = (1/B) ln Σ_j exp(−‖z_i − z_j‖²/h_i) + (1/B) Σ ln(1 + a F_i²),   z_i = ⟨F_i, directions⟩

with the directions of spaces/features.py.

As published, one classifier is shared by all members; `shared_head=False` gives each its own.
"""

from forde.kernels import RBF, Bandwidth, Median
from forde.methods.base import Method
from forde.methods.registry import register
from forde.priors import Cauchy, Isotropic
from forde.spaces import Features

PER_ROW = Median("row")


@register("feature-rde")
def feature_rde(
    *,
    shared_head: bool = True,
    projection: int | None = 5,
    cauchy: float = 1e-3,
    layer: str | None = None,
    bandwidth: str | float | Bandwidth = PER_ROW,
    official_smallest: bool = False,
    official_square: bool = False,
) -> Method:
    """Repulsion between features along loss-gradient directions, with a Cauchy prior and a shared classifier."""
    # The authors' code squares the median of squared distances (so the force depends on the features' scale) and keeps
    # the directions of smallest eigenvalue (the least relevant ones). Both look like slips, so both are options.
    if official_square:
        bandwidth = Median("row", square=True)
    return Method(
        space=Features(layer=layer, projection=projection, smallest=official_smallest),
        kernel=RBF(bandwidth=bandwidth),
        prior=(Cauchy(cauchy, on="features"), Isotropic()),
        shared_head=shared_head,
    )
