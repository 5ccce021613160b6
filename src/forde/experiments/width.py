"""Does disagreement vanish as networks widen, and does repulsion stop that?"""

from __future__ import annotations

import re

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure, ScoreTable
from forde.experiments.paper import image_cell
from forde.experiments.registry import register

WIDTHS = (8, 16, 32, 64, 128)
"""Channels of the first group; ResNet18 has 64."""
METHODS = ("deep-ensemble", "forde-pca", "forde")


def width_of(cell: Cell) -> int:
    """Channels of the first group, or units of a perceptron's hidden layer."""
    return int(found[0]) if (found := re.findall(r"-w?(\d+)", cell.model)) else 64


def label(cell: Cell) -> str:
    """`forde, width 16`."""
    return f"{cell.method}, width {width_of(cell)}"


CLAIMS = (
    Claim("Members of deep ensembles disagree less as networks widen (disagreement, width 16 against 64).",
          better("clean.disagreement", "deep-ensemble, width 16", "deep-ensemble, width 64"), source="this library"),
    Claim("At width 64, members of forde disagree more than those of deep ensembles under corruption.",
          better("pooled.disagreement", "forde, width 64", "deep-ensemble, width 64"), source="this library"),
)  # fmt: skip


@register("width", Figure("width"), ScoreTable(), claims=CLAIMS, label=label)
def width(budget: Budget) -> list[Cell]:
    """Ours: disagreement of members as networks widen, with and without repulsion."""
    if budget.smoke:
        models = [f"mlp-{size}" for size in (8, 16)]
    else:
        models = ["resnet18" if size == 64 else f"resnet18-w{size}" for size in WIDTHS]
    return [
        image_cell(budget, "cifar10", method, seed, model=model)
        for model in models
        for method in METHODS
        for seed in budget.seeds_of(closely=False)
    ]
