"""Figure 2 of the paper."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure
from forde.experiments.registry import register
from forde.experiments.toy_cells import toy_cells

BASELINES = ("deep-ensemble", "weight-rde", "function-rde", "feature-rde", "lit")
CLAIMS = (
    Claim("FoRDE is more uncertain than the baselines outside the training data, in 1D.",
          better("toy.outside", "forde-identity", *BASELINES)),
)  # fmt: skip


def label(cell: Cell) -> str:
    """The method."""
    return cell.method


@register("fig-1d", Figure("figure-2"), claims=CLAIMS, label=label)
def fig_1d(budget: Budget) -> list[Cell]:
    """Figure 2: uncertainty of seven methods in 1D regression."""
    return toy_cells(budget, "regression-1d")
