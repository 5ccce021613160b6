"""Table 2 of the paper, and the recommended recipe beside it."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.outputs import ScoreTable
from forde.experiments.paper import CLOSELY, OTHERS, table
from forde.experiments.registry import register
from forde.experiments.table_claims import table_claims


@register("table-cifar10", ScoreTable("cifar10"), claims=table_claims("nll"))
def table_cifar10(budget: Budget) -> list[Cell]:
    """Table 2: eleven methods on CIFAR-10, clean and corrupted."""
    return table(budget, "cifar10", [*CLOSELY, *OTHERS])
