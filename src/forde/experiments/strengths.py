"""Strengths of the recipe that stay and that fall during training, on photographs small enough for a CPU.

Fashion-MNIST and perceptrons: 28 × 28 pixels, 60,000 training images. Whatever the budget, trainings are in float32 and
without augmentation, so that networks begin to fit the training images better than others, as large ones do.
"""

from __future__ import annotations

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, options_of
from forde.experiments.frontier import FALLING, Point, judged, label, on_a_quarter
from forde.experiments.outputs import Figure, ScoreTable
from forde.experiments.paper import MEMBERS, image_cell
from forde.experiments.registry import register

DATA, MODEL, EPOCHS = "fashion-mnist", "mlp-256-256", 60
POINTS: tuple[Point, ...] = (on_a_quarter(10), FALLING[0], on_a_quarter(5), FALLING[1])
"""Beside the deep ensemble."""


@register(
    "strengths", Figure("frontier"), ScoreTable(), label=label,
    claims=[claim for point in POINTS for claim in judged(point)],
)  # fmt: skip
def strengths(level: Budget) -> list[Cell]:
    """Ours: strengths that stay and that fall, on Fashion-MNIST with perceptrons; minutes a cell on a CPU."""

    def cell(method: str, options: dict[str, object], seed: int) -> Cell:
        if level.smoke:
            return image_cell(level, DATA, method, seed, options=options)
        return Cell(
            "images", DATA, MODEL, method, level.members_of(MEMBERS), level.epochs_of(EPOCHS), options_of(**options),
            seed=seed, augment=False,
        )  # fmt: skip

    settings: tuple[Point, ...] = (("deep-ensemble", {}), *POINTS)
    return [cell(method, options, seed) for seed in level.seeds_of(closely=True) for method, options in settings]
