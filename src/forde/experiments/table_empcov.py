"""Table 3 of the paper: the EmpCov prior for all methods but FoRDE-PCA."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import ScoreTable
from forde.experiments.paper import table
from forde.experiments.registry import register

METHODS = ("deep-ensemble", "weight-rde", "function-rde", "feature-rde")
WITH_PRIOR = tuple(f"{name} + EmpCov" for name in METHODS)
CLAIMS = (
    *(
        Claim(
            f"FoRDE-PCA is more robust than the baselines with the EmpCov prior ({name}).",
            better(name, "forde-pca", *WITH_PRIOR),
        )
        for name in ("cA", "cNLL", "cECE")
    ),
    Claim(
        "The EmpCov prior makes deep ensembles slightly more robust (cA).",
        better("cA", "deep-ensemble + EmpCov", "deep-ensemble"),
    ),
    Claim(
        "The EmpCov prior costs deep ensembles a little on clean data (NLL).",
        better("nll", "deep-ensemble", "deep-ensemble + EmpCov"),
    ),
)


@register("table-empcov", ScoreTable("empcov"), claims=CLAIMS)
def table_empcov(budget: Budget) -> list[Cell]:
    """Table 3: the EmpCov prior on CIFAR-10 for all methods but FoRDE-PCA."""
    return [
        *table(budget, "cifar10", METHODS, prior="empcov"),
        *table(budget, "cifar10", ["forde-pca", "deep-ensemble"]),
    ]
