"""`evaluate_run`: a trained run on test data, on corrupted and on foreign inputs; everything is kept in its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde import saving
from forde.corruptions import SEVERITIES
from forde.data.description import Images, Table
from forde.durable import explaining_writes, make_folder
from forde.errors import FordeError
from forde.evaluation.robustness.evaluate import CellDone, evaluate_robustness
from forde.evaluation.robustness.precision import EvaluationPrecision
from forde.evaluation.runs.cells import checked_corruptions, checked_severities, image_cells, row_cells
from forde.evaluation.runs.examples import find_examples
from forde.evaluation.runs.foreign import evaluate_foreign
from forde.evaluation.runs.inputs import BATCH, inputs_of, labels_of, predicted, refuse_other_classes, to_units
from forde.evaluation.runs.predictions import epistemic_of
from forde.evaluation.runs.regression import clean_rows, evaluate_quantities
from forde.evaluation.runs.scores_file import FOLDER, SCORES, RunScores, Task
from forde.training.run_folder import ENSEMBLE
from forde.training.trained import TrainedRun


def evaluate_run(
    run: TrainedRun,
    data: Images | Table,
    folder: str | Path,
    *,
    split: str = "test",
    corruptions: Sequence[str] = (),
    severities: Sequence[int] = SEVERITIES,
    foreign: Images | Table | None = None,
    precision: EvaluationPrecision = "float32",
    seed: int = 0,
    n_bootstrap: int = 200,
    data_dir: str | Path | None = None,
    verbose: bool = True,
    on_cell: Callable[[CellDone], None] | None = None,
    command: str | None = None,
) -> RunScores:
    """Evaluate a run, and keep scores and members' predictions in `folder/evaluation`.

    What was computed before by the same members on the same data is read, not computed again, so an evaluation that
    was interrupted goes on, and one with more corruptions adds to it.

    Args:
        data: clean data in its own units, with the columns that the run was trained on.
        folder: of the run.
        split: what `data` is called in the scores.
        corruptions: names, or `"all"`: of images those of `forde.corruptions`, of tables `gaussian_noise` and
            `missing_values`.
        foreign: inputs of another kind, whose labels do not count.
        seed: of corruptions that are generated, and of the resamples for standard errors.
        command: what makes this evaluation again, for the report.

    >>> import tempfile, forde
    >>> table = forde.data.load("classification-2d", "test")
    >>> recipe = forde.training.recipe.Recipe.of(table, "mlp", [8])
    >>> run = TrainedRun(forde.Ensemble(recipe.make_network, 2), recipe)
    >>> scores = evaluate_run(run, table, tempfile.mkdtemp(), corruptions=["all"], severities=[1, 5])
    >>> sorted(scores.result.types), 0 <= scores.result.clean["accuracy"].value <= 1
    (['gaussian_noise', 'missing_values'], True)
    """
    names, levels = checked_corruptions(data, corruptions), checked_severities(severities)
    refuse_other_classes(run, data)
    where = Path(folder) / FOLDER
    with explaining_writes(where, "choose a writable folder"):
        make_folder(where)
    common: dict[str, Any] = {"n_bootstrap": n_bootstrap, "seed": seed, "verbose": verbose, "on_cell": on_cell}
    sources = dict.fromkeys(names, f"shifted in standard units (seed {seed})")
    transform, inputs = inputs_of(run, data)
    if not run.inputs.n_classes:
        if precision != "float32":
            raise FordeError(f"precision is {precision!r}, but a quantity is evaluated in 'float32'; leave it out.")
        cells = [clean_rows(inputs, data.y), *row_cells(inputs, data.y, names, levels, seed)]  # type: ignore[union-attr]
        result = evaluate_quantities(run.ensemble, cells, where, to_units(run), **common)
    else:
        labels = labels_of(data)
        if isinstance(data, Images):
            cells, sources = image_cells(
                data, names, levels, seed=seed, device=run.ensemble.device, data_dir=data_dir
            )  # fmt: skip
        else:
            cells = row_cells(inputs, labels, names, levels, seed)
        result = evaluate_robustness(
            run.ensemble, (inputs, labels), cells, folder=where, transform=transform, precision=precision, **common
        )
    result.settings.update(
        sources=sources, corruptions=list(names), severities=list(levels) if names else [], command=command
    )
    about = {
        "name": data.description.name, "split": split, "samples": len(data), "source": data.source,
        "inputs": "images" if isinstance(data, Images) else "rows",
        "classes": list(run.inputs.classes), "target": run.inputs.target,
    }  # fmt: skip
    found = None if foreign is None else evaluate_foreign(run, data, foreign, where, precision)
    task: Task = "classification" if run.inputs.n_classes else "regression"
    scores = RunScores(task, about, result, found, _cost(run, transform(_batch(inputs)), Path(folder)))
    scores.save(where / SCORES)
    if (examples := find_examples(run, data, epistemic_of(where, task))) is not None:
        examples.save(where)
    return scores


def _batch(inputs: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(inputs[:BATCH]))


def _cost(run: TrainedRun, batch: Tensor, folder: Path) -> dict[str, Any]:
    """Size of the ensemble, and the time that a sample's prediction takes in a batch."""
    ensemble = run.ensemble
    predicted(ensemble, batch)
    begun = time.perf_counter()
    predicted(ensemble, batch)
    seconds = time.perf_counter() - begun
    weights = folder / ENSEMBLE / saving.WEIGHTS
    return {
        "members": ensemble.n_members,
        "parameters": sum(parameter.numel() for parameter in ensemble.parameters()),
        "bytes": weights.stat().st_size if weights.is_file() else None,
        "ms_per_sample": 1000 * seconds / len(batch), "device": str(ensemble.device), "batch": len(batch),
    }  # fmt: skip
