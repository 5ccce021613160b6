"""What is made of an experiment's cells: declarations, which `forde.report.experiments` carries out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """One table or figure."""


@dataclass(frozen=True)
class ScoreTable(Output):
    """Clean and corrupted scores of each method, beside the published ones."""

    published: str
    """Key of the table in `published.json`."""
