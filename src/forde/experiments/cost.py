"""What a step costs, and what it brings."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import CostTable
from forde.experiments.paper import CLOSELY, OTHERS, table
from forde.experiments.registry import register

CLAIMS = (
    Claim("FoRDE takes longer to train than deep ensembles (seconds of a step).",
          better("step", "deep-ensemble", "forde-pca")),
    Claim("The recipe forde takes less time than FoRDE-PCA as published (seconds of a step).",
          better("step", "forde", "forde-pca"), source="this library"),
)  # fmt: skip


@register("cost", CostTable(), claims=CLAIMS)
def cost(budget: Budget) -> list[Cell]:
    """Section 3.4: seconds of a training step and memory of each method, in those of a deep ensemble."""
    return table(budget, "cifar10", [*CLOSELY, *OTHERS])
