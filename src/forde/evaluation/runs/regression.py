"""Evaluation of a quantity: root mean squared error, likelihood, CRPS and coverage, on clean and shifted rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.evaluation.robustness.cells import CLEAN, Cell
from forde.evaluation.robustness.evaluate import CellDone
from forde.evaluation.robustness.fingerprints import fingerprint, model_fingerprint
from forde.evaluation.robustness.resampling import resampler
from forde.evaluation.robustness.results import RobustnessResult, summarise
from forde.evaluation.robustness.saved_cells import path_of
from forde.evaluation.runs.inputs import predicted
from forde.evaluation.runs.quantities import SavedQuantities, read_quantities, scores, write_quantities
from forde.prediction import Prediction, RegressionPrediction
from forde.progress import progress_bar

ToUnits = Callable[[Prediction], Prediction]
"""A prediction in standard units → in the target's own."""


def evaluate_quantities(
    ensemble: Ensemble,
    cells: Iterable[Cell],
    folder: Path,
    to_units: ToUnits,
    *,
    n_bootstrap: int,
    seed: int,
    verbose: bool = True,
    on_cell: Callable[[CellDone], None] | None = None,
) -> RobustnessResult:
    """Scores of clean rows, the first cell, and of shifted ones; predictions are kept in `folder`.

    Args:
        cells: rows `[N, D]` in standard units and targets `[N]` in their own.
    """
    every = list(cells)
    draws = resampler("bootstrap", n_bootstrap, seed, torch.device("cpu"))
    sums = {}
    contents = {}
    with progress_bar(len(every), "evaluating", show=verbose) as advance:
        for done, cell in enumerate(every, start=1):
            saved, contents[cell.name], reused = quantities_of(ensemble, cell, folder, to_units)
            rows = saved.terms()
            # The same draws for all cells, whose rows are shifted copies of one another.
            sums[cell.corruption, cell.severity] = torch.cat([rows.sum(0, keepdim=True), draws(saved.y) @ rows])
            found = {name: float(value) for name, value in scores(sums[cell.corruption, cell.severity][0]).items()}
            advance(f"{cell.name} rmse {found['rmse']:.4g}")
            if on_cell is not None:
                on_cell(CellDone(cell.name, done, len(every), found, reused))
    settings = {"n_members": ensemble.n_members, "n_classes": 0, "precision": "float32", "n_bootstrap": n_bootstrap,
                "seed": seed, "cells": contents}  # fmt: skip
    return summarise(sums, settings, scores)


def quantities_of(ensemble: Ensemble, cell: Cell, folder: Path, to_units: ToUnits) -> tuple[SavedQuantities, str, bool]:
    """What members predict for a cell, the fingerprint of model and rows, and whether it was read from its file."""
    rows, y = cell.load()
    target = torch.as_tensor(np.asarray(y)).double()
    # Units are a function of the training data; of what they do, the file's content tells.
    one = to_units(RegressionPrediction(torch.zeros(1, 1), torch.ones(1, 1)))
    content = fingerprint(model_fingerprint(ensemble, None), rows, target, _as_regression(one).total)
    path = path_of(folder, cell.name)
    if saved := read_quantities(path, content):
        return saved, content, True
    prediction = _as_regression(to_units(predicted(ensemble, torch.from_numpy(np.asarray(rows)))))
    saved = SavedQuantities(prediction.member_means.double(), prediction.member_variances.double(), target)
    write_quantities(path, saved, content)
    return saved, content, False


def clean_rows(rows: np.ndarray, y: np.ndarray) -> Cell:
    """The cell of rows as they are.

    >>> clean_rows(np.zeros((2, 1)), np.zeros(2)).name
    'clean'
    """
    return Cell(CLEAN, 0, lambda: (rows, y))


def _as_regression(prediction: Prediction) -> RegressionPrediction:
    if not isinstance(prediction, RegressionPrediction) or prediction.member_means.dim() != 2:
        raise FordeError(
            f"the run gives a {type(prediction).__name__}, but a single quantity per row was expected; evaluate it "
            "with forde.evaluation.score."
        )
    return prediction
