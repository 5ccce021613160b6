"""Is one evaluated run better than another? Paired by sample, for classes and for quantities."""

from __future__ import annotations

from pathlib import Path

import torch

from forde.errors import FordeError
from forde.evaluation.robustness.cells import CLEAN
from forde.evaluation.robustness.comparison import (
    Comparison,
    cell_in_words,
    compare_evaluations,
    comparison_of,
    paired_sums,
    refuse_different_cells,
)
from forde.evaluation.robustness.resampling import resampler
from forde.evaluation.runs.predictions import read_quantity_cell
from forde.evaluation.runs.quantities import scores
from forde.evaluation.runs.scores_file import FOLDER, RunScores


def compare_runs(first: str | Path, second: str | Path, *, n_resamples: int = 1000, seed: int = 0) -> Comparison:
    """Second − first of two runs that `evaluate_run` evaluated on the same data and corruptions.

    Standard errors are of the paired bootstrap and p-values of a permutation test, as in `compare_evaluations`.
    """
    one, two = RunScores.load(first), RunScores.load(second)
    if one.task != two.task:
        raise FordeError(f"'{first}' is for {one.task} and '{second}' for {two.task}; compare runs of one task.")
    if one.data["samples"] != two.data["samples"]:  # names may differ, as those of two copies of a file
        raise FordeError(
            f"'{first}' was evaluated on {_on(one)} and '{second}' on {_on(two)}; evaluate both on the same."
        )
    folders = Path(first) / FOLDER, Path(second) / FOLDER
    if one.task == "classification":
        return compare_evaluations(*folders, n_resamples=n_resamples, seed=seed)
    keys = [[(CLEAN, 0), *((n, s) for n, levels in each.result.cells.items() for s in levels)] for each in (one, two)]
    refuse_different_cells(*keys)
    bootstrap = resampler("bootstrap", n_resamples, seed, torch.device("cpu"))
    swap = resampler("swap", n_resamples, seed + 1, torch.device("cpu"))
    pairs = {}
    for key in keys[0]:
        a, b = (read_quantity_cell(folder, key) for folder in folders)
        if not torch.equal(a.y, b.y):
            raise FordeError(
                f"the evaluations have different targets {cell_in_words(key)}; evaluate both on the same rows."
            )
        pairs[key] = paired_sums(torch.stack([a.terms(), b.terms()]), bootstrap(a.y), swap(a.y))
    return comparison_of(pairs, scores)


def _on(run: RunScores) -> str:
    return f"{run.data['samples']:,} samples of {run.data['name']}"
