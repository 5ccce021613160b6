"""How different the members are: input gradients and predictions (a figure of the appendix)."""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell
from forde.experiments.claims import Claim, better
from forde.experiments.outputs import Figure
from forde.experiments.paper import table
from forde.experiments.registry import register

METHODS = ("deep-ensemble", "forde-pca", "forde", "forde-identity", "forde-tuned")
GRADIENTS = [f"gradient_distance.{level}" for level in range(6)]
EPISTEMIC = ["epistemic", *(f"severities.{level}.epistemic" for level in range(1, 6))]
CLAIMS = tuple(
    Claim(
        f"{shown} has {what} than deep ensembles at every severity.",
        tuple(one for name in numbers for one in better(name, method, "deep-ensemble")),
        source=source,
    )
    for method, shown, source in (
        ("forde-pca", "FoRDE", "the paper, of CIFAR-100"),
        ("forde", "The recipe forde", "this library"),
    )
    for what, numbers in (
        ("higher distances of input gradients", GRADIENTS),
        ("higher epistemic uncertainty", EPISTEMIC),
    )
)


@register("fig-diversity", Figure("diversity"), claims=CLAIMS)
def fig_diversity(budget: Budget) -> list[Cell]:
    """Appendix: distances of input gradients and epistemic uncertainty at each severity."""
    return [*table(budget, "cifar10", METHODS), *table(budget, "cifar100", METHODS)]
