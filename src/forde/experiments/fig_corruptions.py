"""Every method at every severity (two figures of the appendix)."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure
from forde.experiments.paper import CLOSELY, OTHERS, table
from forde.experiments.registry import register
from forde.experiments.table_claims import BASELINES

CLAIMS = tuple(
    Claim(
        f"FoRDE-PCA performs best at every severity ({shown}).",
        tuple(one for level in range(1, 6) for one in better(f"severities.{level}.{name}", "forde-pca", *BASELINES)),
    )
    for name, shown in (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE"))
)


@register("fig-corruptions", Figure("corruptions"), claims=CLAIMS)
def fig_corruptions(budget: Budget) -> list[Cell]:
    """Appendix: accuracy, NLL and ECE of all methods at each severity of corruption."""
    methods = [*CLOSELY, *OTHERS]
    return [*table(budget, "cifar10", methods), *table(budget, "cifar100", methods)]
