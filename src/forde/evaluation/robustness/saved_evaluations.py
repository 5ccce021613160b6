"""Finished evaluations on disk: read again, and scored again without a forward pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from forde.errors import FordeError
from forde.evaluation.robustness.cells import CLEAN, cell_name
from forde.evaluation.robustness.devices import float64_device
from forde.evaluation.robustness.resampling import resampled_sums, resampler
from forde.evaluation.robustness.results import MANIFEST, RobustnessResult, summarise
from forde.evaluation.robustness.saved_cells import SavedCell, path_of, read_cell

Folder = str | os.PathLike[str]


def saved_evaluation(folder: Folder) -> tuple[RobustnessResult, dict[tuple[str, int], Callable[[], SavedCell]]]:
    """Its result, and for each (corruption, severity) a function that reads the members' predictions.

    Clean data are `("clean", 0)`. So a metric that was not thought of then needs no forward pass now:

        result, cells = saved_evaluation(folder)
        cell = cells["fog", 3]()
        classwise_ece(mixture(cell.member_probs), cell.labels)
    """
    path = Path(folder)
    if not (path / MANIFEST).exists():
        raise FordeError(f"'{path}' holds no finished evaluation; evaluate into this folder to the end.")
    result = RobustnessResult.load(path / MANIFEST)
    keys = [(CLEAN, 0), *((name, level) for name, levels in result.cells.items() for level in levels)]
    return result, {key: partial(_read, path, cell_name(*key), result.settings["cells"]) for key in keys}


def _read(folder: Path, name: str, contents: dict[str, str]) -> SavedCell:
    saved = read_cell(path_of(folder, name), contents[name])
    if saved is None:
        raise FordeError(f"'{path_of(folder, name)}' is missing, damaged or of another model; evaluate again.")
    return saved


def rescore(
    folder: Folder,
    *,
    n_bins: int = 15,
    n_bootstrap: int = 200,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> RobustnessResult:
    """The result of a saved evaluation with other bins or resamples, without a forward pass."""
    before, cells = saved_evaluation(folder)
    where = torch.device(device)
    draws = resampler("bootstrap", n_bootstrap, seed, float64_device(where))
    sums = {key: resampled_sums(read(), draws, n_bins, where) for key, read in cells.items()}
    return summarise(sums, before.settings | {"n_bins": n_bins, "n_bootstrap": n_bootstrap, "seed": seed})
