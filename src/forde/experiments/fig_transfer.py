"""Transfer learning from a pretrained network's features (figure 4 of the paper)."""

from __future__ import annotations

from dataclasses import replace

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, options_of
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure, ScoreTable
from forde.experiments.paper import CLOSELY, DRAWS, MEMBERS, OTHERS, label_of, members_of, options_for
from forde.experiments.registry import register
from forde.experiments.table_claims import BASELINES, recipe_claims

EPOCHS = {"full": 100, "long": 100, "short": 30, "smoke": 2}
"""The paper does not say how many; these networks are small."""
MODEL = "mlp-bn-512-512-512"
"""Three hidden layers with BatchNorm; the paper does not say how wide."""
SCORES = {
    "nll": "NLL",
    "ece": "ECE",
    "accuracy": "accuracy",
    "cNLL": "cNLL",
    "cECE": "cECE",
    "cA": "cA",
    "shifted.*.nll": "NLL under natural shift",
}
CLAIMS = (
    *(
        Claim(
            f"FoRDE is better than the baselines in transfer learning ({shown}).", better(name, "forde-pca", *BASELINES)
        )
        for name, shown in SCORES.items()
    ),
    Claim(
        "FoRDE has the highest epistemic uncertainty on foreign data.",
        better("foreign.*.epistemic", "forde-pca", *BASELINES),
    ),
    *recipe_claims(),
)


def transfer_cell(budget: Budget, data: str, method: str, seed: int) -> Cell:
    """Perceptrons on features of one data set."""
    if budget.smoke:
        return Cell(
            "features", "digits", "mlp-bn-16-16", method, members_of(budget, method), EPOCHS["smoke"],
            options_of(**options_for(method, "digits")), seed=seed, batch_size=64, lr=0.1, augment=False,
        )  # fmt: skip
    return Cell(
        "features", f"{data}@{budget.backbone}", MODEL, method, DRAWS.get(method, MEMBERS), EPOCHS[budget.name],
        options_of(**options_for(method, data)), seed=seed, batch_size=256, lr=0.2, augment=False,
    )  # fmt: skip


def label(cell: Cell) -> str:
    """As in the tables: options are looked up by the data set's own name."""
    return label_of(replace(cell, data=cell.data.partition("@")[0]))


@register("fig-transfer", Figure("transfer"), ScoreTable(), claims=CLAIMS, label=label)
def fig_transfer(budget: Budget) -> list[Cell]:
    """Figure 4: perceptrons on features of a pretrained network, in and out of distribution."""
    return [
        transfer_cell(budget, data, method, seed)
        for data in ("cifar10", "cifar100")
        for method in (*CLOSELY, *OTHERS)
        for seed in budget.seeds_of(closely=True)
    ]
