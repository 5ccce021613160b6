"""Figures of experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from forde.experiments.groups import Group
from forde.report.corruption_figures import corruptions, diversity, each_corruption
from forde.report.dial_figures import alpha, frontier, sizes, width
from forde.report.toy_figures import figure_2, figure_3
from forde.report.transfer_figure import transfer

Groups = Mapping[str, Mapping[str, Group]]
"""By data set and label."""
DRAWINGS: dict[str, Callable[[Groups, Path], None]] = {
    "figure-2": figure_2, "figure-3": figure_3, "sizes": sizes, "diversity": diversity, "corruptions": corruptions,
    "each-corruption": each_corruption, "alpha": alpha, "transfer": transfer, "frontier": frontier, "width": width,
}  # fmt: skip


def draw(name: str, groups: Groups, folder: Path) -> Iterator[str]:
    """Write `figure.png` and `figure.svg`; yields a line where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        yield "figures need matplotlib, which is not installed; run: pip install 'forde[plot]'"
        return
    DRAWINGS[name](groups, folder)
