"""All cells in the order in which they tell most: what to run where computing time is short."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, unique
from forde.experiments.paper import CLOSELY, OTHERS, image_cell
from forde.experiments.registry import experiments, register

FIRST, SECOND = CLOSELY[:3], CLOSELY[3:]
GENTLER = {"strength": 5, "repulsion_fraction": 0.25}
"""Where strength 10 costs more clean NLL than is within noise, this is what may become the recipe's own."""
NEXT = ("frontier", "table-cifar10", "fig-alpha", "table-empcov", "fig-empcov", "fig-sizes", "width")
"""After the methods compared most closely."""


@register("plan")
def plan(budget: Budget) -> list[Cell]:
    """All cells that need CIFAR-10 alone, the most telling first; no table or figure of its own."""
    known = experiments()
    seeds = budget.seeds_of(closely=True)
    first, second = (
        [image_cell(budget, "cifar10", method, seed) for seed in seeds for method in group] for group in (FIRST, SECOND)
    )
    gentler = [image_cell(budget, "cifar10", "forde", seed, options=GENTLER) for seed in seeds]
    others = [
        image_cell(budget, "cifar10", method, seed) for seed in budget.seeds_of(closely=False) for method in OTHERS
    ]
    frontier = known["frontier"].cells(budget)
    rest = [cell for name in NEXT for cell in known[name].cells(budget) if cell.data != "cifar100"]
    return unique([*first, *gentler, *second, *frontier, *others, *rest])
