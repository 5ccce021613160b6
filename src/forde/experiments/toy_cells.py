"""Cells of figures 2 and 3: 16 small networks, on a CPU in seconds; numbers and curves as lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, options_of
from forde.experiments.places import Place
from forde.experiments.results import Result
from forde.experiments.toys import (
    CLASSIFICATION,
    CLASSIFICATION_RANGE,
    LEARNING_RATE,
    METHODS,
    N_MEMBERS,
    REGRESSION,
    REGRESSION_RANGE,
    ClassificationResult,
    RegressionResult,
    Settings,
    run_classification,
    run_regression,
)
from forde.methods import method

EPOCHS = {"full": 500, "long": 500, "short": 200, "smoke": 3}
"""These networks are small: short is what `docs/toys.md` calls quick."""
GRIDS = {"regression-1d": 201, "classification-2d": 61}
"""Points that are kept."""
SETTINGS = {"regression-1d": REGRESSION, "classification-2d": CLASSIFICATION}


def toy_cells(budget: Budget, kind: Any) -> list[Cell]:
    """Every method with the settings of `docs/toys.md`."""
    settings: Settings = SETTINGS[kind]
    return [
        Cell(
            kind, kind, "mlp-tanh-50-50" if kind == "regression-1d" else "mlp-50-50", name, N_MEMBERS,
            EPOCHS[budget.name],
            options_of(repulsion_weight=settings.repulsion_weights.get(name, 1), **settings.options.get(name, {})),
            seed=seed, lr=LEARNING_RATE, augment=False,
        )
        for name in METHODS
        for seed in budget.seeds_of(closely=True)
    ]  # fmt: skip


def run_toy(cell: Cell, place: Place) -> dict[str, Any]:
    """Train and predict on the grid."""
    settings = replace(SETTINGS[cell.kind], epochs=cell.epochs, grid=GRIDS[cell.kind])
    chosen = replace(
        method(cell.method, weight_decay=settings.weight_decay, **dict(cell.options)), name=cell.method
    )  # fmt: skip
    if cell.kind == "regression-1d":
        line = run_regression(chosen, settings=settings, seed=cell.seed)
        toy = {name: getattr(line, name) for name in ("outside", "gaps", "beyond", "inside", "member_rmse")}
        curves = {"mean": _digits(line.mean, 4), "std": _digits(line.std, 4)}
        return {"toy": {**toy, "fits": float(line.fits), **curves}, "seconds": {"training": line.seconds}, "notes": []}
    plane = run_classification(chosen, settings=settings, seed=cell.seed)
    toy = {
        name: getattr(plane, name) for name in ("far", "on_test", "accuracy", "worst_member_accuracy", "test_accuracy")
    }
    lowest = {"lowest_direction": float(plane.ring.min()), "lowest_behind": float(plane.behind.min())}
    curves = {"ring": _digits(plane.ring, 3), "behind": _digits(plane.behind, 3), "entropy": _digits(plane.entropy, 3)}
    return {
        "toy": {**toy, **lowest, "fits": float(plane.fits), **curves},
        "seconds": {"training": plane.seconds},
        "notes": [],
    }


def regression_result(result: Result) -> RegressionResult:
    """As `run_regression` gave it."""
    toy = result.content["toy"]
    numbers = {name: toy[name] for name in ("outside", "gaps", "beyond", "inside", "member_rmse")}
    return RegressionResult(
        result.cell.method, result.cell.seed, torch.linspace(-REGRESSION_RANGE, REGRESSION_RANGE, len(toy["mean"])),
        torch.tensor(toy["mean"]), torch.tensor(toy["std"]), **numbers,
        seconds=result.content["seconds"]["training"],
    )  # fmt: skip


def classification_result(result: Result) -> ClassificationResult:
    """As `run_classification` gave it."""
    toy = result.content["toy"]
    numbers = {name: toy[name] for name in ("far", "on_test", "accuracy", "worst_member_accuracy", "test_accuracy")}
    entropy, ring, behind = (torch.tensor(toy[name]) for name in ("entropy", "ring", "behind"))
    axis = torch.linspace(-CLASSIFICATION_RANGE, CLASSIFICATION_RANGE, len(toy["entropy"]))
    return ClassificationResult(
        result.cell.method, result.cell.seed, axis, entropy=entropy, ring=ring, behind=behind, **numbers,
        seconds=result.content["seconds"]["training"],
    )  # fmt: skip


def _digits(values: torch.Tensor, digits: int) -> Any:
    """Nested lists of rounded numbers."""
    plain = values.tolist()
    return _rounded(plain, digits)


def _rounded(value: Any, digits: int) -> Any:
    return [_rounded(item, digits) for item in value] if isinstance(value, list) else round(value, digits)
