"""All cells in the order in which they tell most: what to run where computing time is short."""

from __future__ import annotations

from collections.abc import Sequence

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, unique
from forde.experiments.frontier import FALLING, Point, on_a_quarter
from forde.experiments.paper import CLOSELY, OTHERS, image_cell
from forde.experiments.registry import experiments, register

FIRST, SECOND = CLOSELY[:3], CLOSELY[3:]
GENTLER = (on_a_quarter(5), FALLING[0])
"""What may become the recipe's own, where strength 10 costs more clean NLL than is within noise."""
ALSO = (FALLING[1], on_a_quarter(7))
"""What else may keep the gain under corruption without that price."""
NEXT = ("frontier", "table-cifar10", "fig-alpha", "table-empcov", "fig-empcov", "fig-sizes", "width")
"""After the methods compared most closely."""


@register("plan")
def plan(budget: Budget) -> list[Cell]:
    """All cells that need CIFAR-10 alone, the most telling first; no table or figure of its own."""
    known, seeds = experiments(), budget.seeds_of(closely=True)

    def of(methods: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        return [image_cell(budget, "cifar10", method, seed) for seed in seeds for method in methods]

    def at(points: Sequence[Point], seeds: Sequence[int]) -> list[Cell]:
        return [image_cell(budget, "cifar10", method, s, options=options) for s in seeds for method, options in points]

    return unique(
        [
            *of(FIRST, seeds[:1]),
            *of(["deep-ensemble", "forde"], seeds[1:]),
            *at(GENTLER, seeds),
            *at(ALSO, seeds[:1]),
            *of(FIRST, seeds),
            *at(ALSO, seeds),
            *(cell for method in SECOND for cell in of([method], seeds)),
            *of(OTHERS, budget.seeds_of(closely=False)),
            *known["frontier"].cells(budget),
            *(cell for name in NEXT for cell in known[name].cells(budget) if cell.data != "cifar100"),
        ]
    )
