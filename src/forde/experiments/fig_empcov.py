"""FoRDE-PCA, the EmpCov prior and both together, corruption by corruption (a figure of the appendix)."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure, ScoreTable
from forde.experiments.paper import table
from forde.experiments.registry import register

BLUR, CONTRAST = "corruptions.*_blur.*.accuracy", "corruptions.contrast.*.accuracy"
DE, DE_EMPCOV, PCA, BOTH = "deep-ensemble", "deep-ensemble + EmpCov", "forde-pca", "forde-pca + EmpCov"
CLAIMS = (
    Claim("FoRDE-PCA is more robust than deep ensembles on the five blurs.", better(BLUR, PCA, DE)),
    Claim("Deep ensembles with EmpCov are less robust than without on the five blurs.", better(BLUR, DE, DE_EMPCOV)),
    Claim("On contrast, FoRDE-PCA is less robust than deep ensembles.", better(CONTRAST, DE, PCA)),
    Claim("On contrast, deep ensembles with EmpCov are less robust than without.", better(CONTRAST, DE, DE_EMPCOV)),
    Claim(
        "FoRDE-PCA with the EmpCov prior is the most robust on average (cA).", better("cA", BOTH, DE, DE_EMPCOV, PCA)
    ),
)


@register("fig-empcov", Figure("each-corruption"), ScoreTable(), claims=CLAIMS)
def fig_empcov(budget: Budget) -> list[Cell]:
    """Appendix: accuracy under each of 19 corruptions with FoRDE-PCA, the EmpCov prior, and both."""
    methods = ("deep-ensemble", "forde-pca")
    return [*table(budget, "cifar10", methods), *table(budget, "cifar10", methods, prior="empcov")]
