"""Clean against corrupted NLL as the repulsion grows: which scalar, how strong, on what part of a batch, how often."""

from __future__ import annotations

from typing import Any

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.outputs import CostTable, Figure, ScoreTable
from forde.experiments.paper import OTHERS, image_cell, label_of, table
from forde.experiments.registry import register

LOG_PROB = "forde"
STRENGTHS = (10, 5, 20, 2, 40)
"""Of the log-probability on a quarter of the batch, the most telling first."""
POINTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (LOG_PROB, {"strength": 10, "repulsion_fraction": 1}),
    ("forde-pca", {"repulsion_weight": 10}),
    ("forde-pca", {"repulsion_fraction": 0.25}),
    ("forde-pca", {"repulsion_weight": 10, "repulsion_fraction": 0.25}),
    (LOG_PROB, {"strength": 10, "repulsion_fraction": 0.125}),
    (LOG_PROB, {"strength": 20, "repulsion_fraction": 0.125}),
    (LOG_PROB, {"strength": 5, "repulsion_fraction": 1}),
    (LOG_PROB, {"strength": 20, "repulsion_fraction": 1}),
    (LOG_PROB, {"strength": 1, "repulsion_fraction": 1}),
    (LOG_PROB, {"strength": 10, "repulsion_fraction": 0.25, "repulsion_every": 4}),
    (LOG_PROB, {"strength": 40, "repulsion_fraction": 0.25, "repulsion_every": 4}),
    ("forde-pca", {"repulsion_weight": 30}),
)


def label(cell: Cell) -> str:
    """`log-prob × 10, 1/4 of the batch`; baselines by their names."""
    name = family(cell)
    if name is None:
        return label_of(cell)
    scalar, comma, part = name.partition(",")
    return f"{scalar} × {strength_of(cell):g}{comma}{part}"


def family(cell: Cell) -> str | None:
    """What settings on one line of the figure share, `log-prob, 1/4 of the batch`; None for baselines."""
    if cell.method not in (LOG_PROB, "forde-pca"):
        return None
    return f"{'log-prob' if cell.method == LOG_PROB else 'logit'}{part_in_words(dict(cell.options))}"


def strength_of(cell: Cell) -> float:
    """Times the published repulsion."""
    options = dict(cell.options)
    return float(options.get("strength", options.get("repulsion_weight", 1)))


def part_in_words(options: dict[str, Any]) -> str:
    """Where and how often members are compared, after a comma; nothing for everywhere in each step."""
    part, every = options.get("repulsion_fraction", 1), options.get("repulsion_every", 1)
    return f"{f', 1/{1 / part:g} of the batch' if part < 1 else ''}{f', every {every} steps' if every > 1 else ''}"


@register("frontier", Figure("frontier"), ScoreTable(), CostTable(), label=label)
def frontier(budget: Budget) -> list[Cell]:
    """Ours: clean NLL against cNLL as the strength grows, for logit and log-probability, whole batch and parts."""
    quarter = [(LOG_PROB, {"strength": strength, "repulsion_fraction": 0.25}) for strength in STRENGTHS]
    several, one = budget.seeds_of(closely=True), budget.seeds_of(closely=False)

    def cells(points: Any, seeds: tuple[int, ...]) -> list[Cell]:
        return [image_cell(budget, "cifar10", method, s, options=options) for s in seeds for method, options in points]

    return [
        *cells(quarter, several[:1]),
        *cells(POINTS, one),
        *cells(quarter[:3], several[1:]),
        *table(budget, "cifar10", ["deep-ensemble", "forde-pca"]),
        *table(budget, "cifar10", OTHERS),
    ]
