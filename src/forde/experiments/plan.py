"""All cells in the order in which they tell most: what to run where computing time is short."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, unique
from forde.experiments.paper import CLOSELY, OTHERS, image_cell
from forde.experiments.registry import experiments, register

FIRST, SECOND = CLOSELY[:3], CLOSELY[3:]
NEXT = ("frontier", "table-cifar10", "fig-alpha", "table-empcov", "fig-empcov", "fig-sizes", "width")
"""After the methods compared most closely."""


@register("plan")
def plan(budget: Budget) -> list[Cell]:
    """Every cell that needs CIFAR-10 alone, the most telling first; no table or figure of its own."""
    known = experiments()
    first = [
        image_cell(budget, "cifar10", method, seed)
        for group in (FIRST, SECOND)
        for seed in budget.seeds_of(closely=True)
        for method in group
    ]
    others = [
        image_cell(budget, "cifar10", method, seed) for seed in budget.seeds_of(closely=False) for method in OTHERS
    ]
    frontier = known["frontier"].cells(budget) if "frontier" in known else []
    rest = [cell for name in NEXT if name in known for cell in known[name].cells(budget)]
    return unique([*first, *frontier, *others, *rest])
