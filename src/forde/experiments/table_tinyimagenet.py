"""Table 4 of the paper, and the recommended recipe beside it."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import ScoreTable
from forde.experiments.paper import CLOSELY, OTHERS, table
from forde.experiments.registry import register
from forde.experiments.table_claims import BASELINES, competitive, no_gain, recipe_claims

CLAIMS = (
    *(
        Claim(f"FoRDE-PCA performs best under corruption ({name}).", better(name, "forde-pca", *BASELINES))
        for name in ("cA", "cNLL")
    ),
    *competitive("forde-pca", "FoRDE-PCA"),
    *no_gain(),
    *recipe_claims(),
)


@register("table-tinyimagenet", ScoreTable("tinyimagenet"), claims=CLAIMS)
def table_tinyimagenet(budget: Budget) -> list[Cell]:
    """Table 4: eleven methods on TinyImageNet, clean and corrupted."""
    return table(budget, "tinyimagenet", [*CLOSELY, *OTHERS])
