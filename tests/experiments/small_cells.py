"""Cells that take a moment, and results made up by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forde.experiments.budgets import budget
from forde.experiments.cells import Cell
from forde.experiments.groups import Group
from forde.experiments.paper import image_cell
from forde.experiments.places import Place
from forde.experiments.results import Result

RUN = {
    "budget": "smoke", "seed": 0, "device": "cpu", "engine": "auto", "machine": {"processor": "x", "torch": "2"},
    "commit": None, "dirty": None, "command": "forde reproduce", "time": "2024-01-01T00:00:00+00:00",
}  # fmt: skip


def small_cell(method: str = "forde-pca", **changes: Any) -> Cell:
    """A perceptron on a part of the digits."""
    return replace(image_cell(budget("smoke"), "cifar10", method, 0), **changes)


def here(folder: Path, **changes: Any) -> Place:
    """A place on the CPU."""
    return Place(folder, "cpu", **changes)


def made_up(cell: Cell, **content: Any) -> Result:
    """A result with this content."""
    return Result(cell, {"seconds": {"training": 1.0, "step": 0.01}, "run": RUN, **content})


def group_of(label: str, **values: list[float]) -> Group:
    """A group whose clean and pooled scores by seed are given, as `nll=[0.1, 0.2]` or `cNLL=[...]`."""
    group = Group(label, small_cell())
    seeds = max(map(len, values.values()))
    for seed in range(seeds):
        clean = {name: numbers[seed] for name, numbers in values.items() if name[0] != "c" and seed < len(numbers)}
        pooled = {
            {"cA": "accuracy", "cNLL": "nll", "cECE": "ece"}[name]: numbers[seed]
            for name, numbers in values.items()
            if name[0] == "c" and seed < len(numbers)
        }
        group.results[seed] = made_up(small_cell(seed=seed), clean=clean, pooled=pooled)
    return group
