"""Clean against corrupted NLL as the repulsion grows: which scalar, how strong, on what part of a batch, how often.

And two ways of keeping more of the clean NLL: a strength that falls during training, and lengthscales between those of
the principal components and equal ones.
"""

from __future__ import annotations

from typing import Any

from forde.experiments.budgets import Budget, budget
from forde.experiments.cell_methods import LAST_STRENGTH
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import CostTable, Figure, ScoreTable
from forde.experiments.paper import OTHERS, image_cell, label_of, table
from forde.experiments.registry import register
from forde.experiments.table_claims import CORRUPTED, OURS

LOG_PROB = "forde"
Point = tuple[str, dict[str, Any]]


def on_a_quarter(strength: float, **more: Any) -> Point:
    """The recipe with another strength, and what else differs."""
    return LOG_PROB, {"strength": strength, "repulsion_fraction": 0.25, **more}


STRENGTHS = (5, 10, 7, 20, 2, 40)
"""Of the log-probability on a quarter of the batch, the most telling first."""
SEVERAL = 4
"""So many of them with as many seeds as the methods compared most closely."""
FALLING = tuple(on_a_quarter(strength, **{LAST_STRENGTH: 0}) for strength in (10, 20))
BETWEEN = tuple(on_a_quarter(strength, alpha=0.4) for strength in (10, 20))
POINTS: tuple[Point, ...] = (
    *FALLING,
    *BETWEEN,
    (LOG_PROB, {"strength": 10, "repulsion_fraction": 1}),
    ("forde-pca", {"repulsion_weight": 10}),
    ("forde-pca", {"repulsion_fraction": 0.25}),
    ("forde-pca", {"repulsion_weight": 10, "repulsion_fraction": 0.25}),
    (LOG_PROB, {"strength": 10, "repulsion_fraction": 0.125}),
    (LOG_PROB, {"strength": 20, "repulsion_fraction": 0.125}),
    (LOG_PROB, {"strength": 5, "repulsion_fraction": 1}),
    (LOG_PROB, {"strength": 20, "repulsion_fraction": 1}),
    (LOG_PROB, {"strength": 1, "repulsion_fraction": 1}),
    on_a_quarter(10, repulsion_every=4),
    on_a_quarter(40, repulsion_every=4),
    ("forde-pca", {"repulsion_weight": 30}),
)


def label(cell: Cell) -> str:
    """`log-prob × 10, 1/4 of the batch`; baselines by their names."""
    name = family(cell)
    if name is None:
        return label_of(cell)
    scalar, comma, rest = name.partition(",")
    return f"{scalar} × {strength_of(cell):g}{comma}{rest}"


def family(cell: Cell) -> str | None:
    """What settings on one line of the figure share, `log-prob, 1/4 of the batch`; None for baselines."""
    if cell.method not in (LOG_PROB, "forde-pca"):
        return None
    options = dict(cell.options)
    last, alpha = options.get(LAST_STRENGTH), options.get("alpha", 1)
    falling = "" if last is None else f", falling to {last:g}"
    between = "" if alpha == 1 else f", α = {alpha:g}"
    return f"{'log-prob' if cell.method == LOG_PROB else 'logit'}{falling}{between}{part_in_words(options)}"


def strength_of(cell: Cell) -> float:
    """Times the published repulsion, in the first epoch where it falls."""
    options = dict(cell.options)
    return float(options.get("strength", options.get("repulsion_weight", 1)))


def part_in_words(options: dict[str, Any]) -> str:
    """Where and how often members are compared, after a comma; nothing for everywhere in each step."""
    part, every = options.get("repulsion_fraction", 1), options.get("repulsion_every", 1)
    return f"{f', 1/{1 / part:g} of the batch' if part < 1 else ''}{f', every {every} steps' if every > 1 else ''}"


def judged(point: Point) -> tuple[Claim, ...]:
    """What would make a setting the recipe's own: a gain under corruption that costs nothing on clean data."""
    name = label(image_cell(budget("short"), "cifar10", point[0], 0, options=point[1]))
    return (
        Claim(
            f"{name}, is more robust than deep ensembles (cA, cNLL, cECE).",
            tuple(one for score in CORRUPTED for one in better(score, name, "deep-ensemble")),
            OURS,
        ),
        Claim(
            f"{name}, loses nothing significant on clean data (accuracy, NLL).",
            (*better("accuracy", "deep-ensemble", name), *better("nll", "deep-ensemble", name)),
            OURS,
            denied=True,
        ),
    )


CANDIDATES = (*map(on_a_quarter, STRENGTHS[:SEVERAL]), *FALLING, *BETWEEN)


@register(
    "frontier", Figure("frontier"), ScoreTable(), CostTable(), label=label,
    claims=[claim for point in CANDIDATES for claim in judged(point)],
)  # fmt: skip
def frontier(level: Budget) -> list[Cell]:
    """Ours: clean NLL against cNLL as the strength grows, for logit and log-probability, whole batch and parts."""
    quarter = [on_a_quarter(strength) for strength in STRENGTHS]
    several, one = level.seeds_of(closely=True), level.seeds_of(closely=False)

    def cells(points: Any, seeds: tuple[int, ...]) -> list[Cell]:
        return [image_cell(level, "cifar10", method, s, options=options) for s in seeds for method, options in points]

    return [
        *cells(quarter, several[:1]),
        *cells(POINTS, one),
        *cells([*quarter[:SEVERAL], *FALLING], several),
        *table(level, "cifar10", ["deep-ensemble", "forde-pca"]),
        *table(level, "cifar10", OTHERS),
    ]
