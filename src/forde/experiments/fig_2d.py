"""Figure 3 of the paper."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.fig_1d import BASELINES, label
from forde.experiments.outputs import Figure
from forde.experiments.registry import register
from forde.experiments.toy_cells import toy_cells

CLAIMS = (
    Claim("FoRDE is more uncertain than the baselines far from the training data, in 2D.",
          better("toy.far", "forde-identity", *BASELINES)),
    Claim("FoRDE is more uncertain than the baselines in the direction in which each is most certain, in 2D.",
          better("toy.lowest_direction", "forde-identity", *BASELINES)),
)  # fmt: skip


@register("fig-2d", Figure("figure-3"), claims=CLAIMS, label=label)
def fig_2d(budget: Budget) -> list[Cell]:
    """Figure 3: entropy of seven methods in 2D classification."""
    return toy_cells(budget, "classification-2d")
