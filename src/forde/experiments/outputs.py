"""What is made of an experiment's cells: declarations, which `forde.report.experiments` carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Drawing = Literal[
    "figure-2", "figure-3", "sizes", "diversity", "corruptions", "each-corruption", "alpha", "transfer", "frontier",
    "width",
]  # fmt: skip


@dataclass(frozen=True)
class Output:
    """One table or figure."""


@dataclass(frozen=True)
class ScoreTable(Output):
    """Scores of each setting, beside the published ones."""

    published: str | None = None
    """Key of the table in `published.json`; None where the paper has no such table."""


@dataclass(frozen=True)
class CostTable(Output):
    """Time and memory of a step, and what it brings, in those of a deep ensemble."""


@dataclass(frozen=True)
class Figure(Output):
    """A figure, by the name of the function that draws it."""

    drawing: Drawing
