"""Lengthscales between identity and PCA (two figures of the appendix)."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure, ScoreTable
from forde.experiments.paper import image_cell
from forde.experiments.registry import register

ALPHAS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)
SEEDS = 3
"""As many as the paper has here."""
CLAIMS = (
    Claim("From identity to PCA, FoRDE becomes more robust (cA).", better("cA", "α=1", "α=0")),
    Claim("From identity to PCA, FoRDE loses a little on clean data (accuracy).", better("accuracy", "α=0", "α=1")),
    Claim("With identity lengthscales, FoRDE is better than deep ensembles on clean data (accuracy).",
          better("accuracy", "α=0", "deep-ensemble")),
    Claim("With identity lengthscales, FoRDE is slightly less robust than deep ensembles (cA).",
          better("cA", "deep-ensemble", "α=0")),
    *(Claim(f"With α = {alpha}, FoRDE is better than deep ensembles clean and corrupted (accuracy, cA).",
            (*better("accuracy", f"α={alpha}", "deep-ensemble"), *better("cA", f"α={alpha}", "deep-ensemble")),
            data=data)
      for data, alpha in (("cifar10", 0.2), ("cifar100", 0.4))),
)  # fmt: skip


def label(cell: Cell) -> str:
    """`α=0.2`, whichever method has it."""
    if cell.method == "deep-ensemble":
        return cell.method
    return f"α={alpha_of(cell):g}"


def alpha_of(cell: Cell) -> float:
    """0 for identity, 1 for PCA."""
    return {"forde-identity": 0.0, "forde-pca": 1.0}.get(cell.method) or float(dict(cell.options).get("alpha", 0.0))


@register("fig-alpha", Figure("alpha"), ScoreTable(), claims=CLAIMS, label=label)
def fig_alpha(budget: Budget) -> list[Cell]:
    """Appendix: accuracy of FoRDE between identity (α = 0) and PCA lengthscales (α = 1)."""
    cells = []
    for data in ("cifar10", "cifar100"):
        for alpha in ALPHAS:
            method = {0.0: "forde-identity", 1.0: "forde-pca"}.get(alpha, "forde-tuned")
            options = {"alpha": alpha} if method == "forde-tuned" else {}
            for seed in budget.seeds_of(closely=method != "forde-tuned")[:SEEDS]:
                cells.append(image_cell(budget, data, method, seed, options=options))
        cells += [image_cell(budget, data, "deep-ensemble", s) for s in budget.seeds_of(closely=True)[:SEEDS]]
    return cells
