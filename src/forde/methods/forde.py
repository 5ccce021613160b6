"""FoRDE (Trinh et al. 2024, https://arxiv.org/abs/2306.02775): repulsion in the space of input gradients.

    R_i = (1/B) ln Σ_j (1/B) Σ_b exp(−d_ijb/h_jb),   d_ijb = (s_ib − s_jb)ᵀ Σ⁻¹ (s_ib − s_jb),   s = J/‖J‖

as the released code computes it; `bandwidth=Median("sample", halve=True)` is the paper's algorithm box.
"""

from dataclasses import replace

from forde.arguments import EMBEDDINGS, Of
from forde.errors import FordeError
from forde.kernels import PCA, RBF, Bandwidth, Identity, Median, Metric, Tuned
from forde.methods.base import Method
from forde.methods.registry import register
from forde.spaces import InputGradients
from forde.spaces.input_gradients import Scalar

PER_COLUMN = Median("column")


def _forde(metric: Metric, output: Scalar, bandwidth: str | float | Bandwidth, eps: float, of: Of) -> Method:
    return Method(space=InputGradients(output=output, eps=eps, of=of), kernel=RBF(metric, bandwidth))


@register("forde-identity")
def forde_identity(
    *, output: Scalar = "logit", bandwidth: str | float | Bandwidth = PER_COLUMN, eps: float = 1e-24, of: Of = None
) -> Method:
    """FoRDE with equal lengthscales: best on clean data."""
    return _forde(Identity(), output, bandwidth, eps, of)


@register("forde-pca")
def forde_pca(
    *,
    output: Scalar = "logit",
    bandwidth: str | float | Bandwidth = PER_COLUMN,
    eps: float = 1e-24,
    rank: int | None = None,
    center: bool = False,
    of: Of = None,
) -> Method:
    """FoRDE with lengthscales from the data's principal components: most robust to corruption."""
    return _forde(PCA(rank=rank, center=center), output, bandwidth, eps, of)


@register("forde-tuned")
def forde_tuned(
    *,
    alpha: float = 0.4,
    harmonic: bool = False,
    output: Scalar = "logit",
    bandwidth: str | float | Bandwidth = PER_COLUMN,
    eps: float = 1e-24,
    rank: int | None = None,
    center: bool = False,
    of: Of = None,
) -> Method:
    """FoRDE between identity (alpha=0) and PCA (alpha=1): a balance of both."""
    return _forde(Tuned(rank=rank, center=center, alpha=alpha, harmonic=harmonic), output, bandwidth, eps, of)


@register("forde")
def forde(
    *, strength: float = 10.0, alpha: float = 1.0, output: Scalar = "auto", rank: int | None = None, of: Of = None
) -> Method:
    """FoRDE as recommended: log-probability gradients, a quarter of the batch, a strength of one's own choice.

    Args:
        strength: the dial from clean to corrupted performance; multiplies the published repulsion. 0 is the deep
            ensemble.
        alpha: between equal lengthscales (0) and those of the data's principal components (1), as in `forde-tuned`.
        of: as in `InputGradients`. At embeddings members are compared with equal lengthscales, as in `forde-identity`:
            tokens have no principal directions.

    How it differs from the published `forde-pca`:

    - Members are compared by gradients of the log-probability of the true class, not of its raw logit. Logits that are
      all shifted by one function of the input give the same probabilities, so logit gradients can differ without any
      consequence. Where outputs are no classes, as in regression, they are those of the output, as published.
    - The repulsion is `strength` times the published one.
    - It acts on a quarter of each batch (`repulsion_fraction=0.25`), which is most of what makes it cheaper.

    What it gains and costs: `docs/results.md`.
    """
    if of == EMBEDDINGS and alpha != 1:
        raise FordeError(f"alpha is {alpha}, but tokens have no principal directions to mix; leave it out.")
    between = PCA(rank=rank) if alpha == 1 else Tuned(rank=rank, alpha=alpha)
    metric = Identity() if of == EMBEDDINGS else between
    base = _forde(metric, output, PER_COLUMN, 1e-24, of)
    return replace(base, repulsion_weight=strength, repulsion_fraction=0.25)
