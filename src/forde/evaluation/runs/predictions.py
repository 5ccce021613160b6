"""Saved predictions of a run's evaluation, read again."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from forde.errors import FordeError
from forde.evaluation.robustness.cells import CLEAN, cell_name
from forde.evaluation.robustness.saved_cells import SavedCell, path_of, read_cell
from forde.evaluation.runs.quantities import SavedQuantities, read_quantities
from forde.evaluation.runs.scores_file import Task
from forde.metrics.statistics import MEANS

Key = tuple[str, int]
CLEAN_KEY: Key = (CLEAN, 0)


def read_class_cell(folder: Path, key: Key) -> SavedCell:
    """A cell's predictions of classes from the folder of an evaluation."""
    path = path_of(folder, cell_name(*key))
    saved = read_cell(path)
    if saved is None:
        raise _damaged(path)
    return saved


def read_quantity_cell(folder: Path, key: Key) -> SavedQuantities:
    """A cell's predictions of a quantity from the folder of an evaluation."""
    path = path_of(folder, cell_name(*key))
    saved = read_quantities(path)
    if saved is None:
        raise _damaged(path)
    return saved


def epistemic_of(folder: Path, task: Task, key: Key = (CLEAN, 0)) -> Tensor:
    """The epistemic uncertainty of each sample `[N]`: in nats for classes, as standard deviation for a quantity."""
    if task == "classification":
        return read_class_cell(folder, key).terms[:, MEANS.index("epistemic")]
    return read_quantity_cell(folder, key).prediction.epistemic.sqrt()


def _damaged(path: Path) -> FordeError:
    return FordeError(f"'{path}' is missing or damaged; evaluate the run again.")
