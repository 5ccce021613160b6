"""How the number of members matters (two figures of the appendix)."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure, ScoreTable
from forde.experiments.paper import image_cell
from forde.experiments.registry import register

SIZES = {"full": (2, 5, 10, 20, 30), "long": (2, 5, 10, 20), "short": (2, 5, 10, 20), "smoke": (2, 3)}
"""The paper goes up to 30; which sizes it has between is not said."""
METHODS = ("deep-ensemble", "forde-pca")


def label(cell: Cell) -> str:
    """`forde-pca × 10`."""
    return f"{cell.method} × {cell.members}"


CLAIMS = (
    Claim("FoRDE with 10 members is as robust as a deep ensemble with 30, or more so (cNLL).",
          better("cNLL", "forde-pca × 10", "deep-ensemble × 30", by=-0.005)),
    Claim("FoRDE with 10 members is as robust as a deep ensemble with 20, or more so (cNLL).",
          better("cNLL", "forde-pca × 10", "deep-ensemble × 20", by=-0.005)),
    *(Claim(f"FoRDE is better than deep ensembles of its size under corruption (cNLL, {size} members).",
            better("cNLL", f"forde-pca × {size}", f"deep-ensemble × {size}"))
      for size in (5, 10, 20, 30)),
    *(Claim(f"FoRDE is behind deep ensembles of its size on clean images (NLL, {size} members).",
            better("nll", f"deep-ensemble × {size}", f"forde-pca × {size}"))
      for size in (10, 30)),
    *(Claim(f"More members make both better (NLL and cNLL, {method}).",
            (*better("nll", f"{method} × 20", f"{method} × 5"), *better("cNLL", f"{method} × 20", f"{method} × 5")))
      for method in METHODS),
)  # fmt: skip


@register("fig-sizes", Figure("sizes"), ScoreTable(), claims=CLAIMS, label=label)
def fig_sizes(budget: Budget) -> list[Cell]:
    """Appendix: NLL of WRN16-4 ensembles against their number of members, clean and corrupted."""
    return [
        image_cell(budget, data, method, seed, model=None if budget.smoke else "wrn16_4", members=size)
        for data in ("cifar10", "cifar100")
        for size in SIZES[budget.name]
        for method in METHODS
        for seed in budget.seeds_of(closely=False)
    ]
