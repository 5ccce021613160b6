"""Figures 2 and 3 from result files: the first seed of each method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forde.experiments.groups import Group
from forde.experiments.results import Result
from forde.experiments.toy_cells import classification_result, regression_result
from forde.report.toys import draw_figure_2, draw_figure_3


def figure_2(groups: Mapping[str, Mapping[str, Group]], folder: Path) -> None:
    """1D regression."""
    for kind in ("png", "svg"):
        draw_figure_2([regression_result(result) for result in _first(groups)], folder / f"figure.{kind}")


def figure_3(groups: Mapping[str, Mapping[str, Group]], folder: Path) -> None:
    """2D classification."""
    for kind in ("png", "svg"):
        draw_figure_3([classification_result(result) for result in _first(groups)], folder / f"figure.{kind}")


def _first(groups: Mapping[str, Mapping[str, Group]]) -> list[Result]:
    return [group.results[min(group.results)] for found in groups.values() for group in found.values()]
