"""Table 1 of the paper, and the recommended recipe beside it."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.outputs import ScoreTable
from forde.experiments.paper import CLOSELY, OTHERS, table
from forde.experiments.registry import register
from forde.experiments.table_claims import table_claims


@register("table-cifar100", ScoreTable("cifar100"), claims=table_claims("accuracy"))
def table_cifar100(budget: Budget) -> list[Cell]:
    """Table 1: eleven methods on CIFAR-100, clean and corrupted."""
    return table(budget, "cifar100", [*CLOSELY, *OTHERS])
