"""What the report knows of a run: everything is read from its folder, neither the network nor the data is needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from forde.errors import FordeError
from forde.evaluation.robustness.saved_cells import SavedCell
from forde.evaluation.runs.examples import Examples
from forde.evaluation.runs.foreign import FOREIGN
from forde.evaluation.runs.predictions import CLEAN_KEY, Key, epistemic_of, read_class_cell, read_quantity_cell
from forde.evaluation.runs.quantities import SavedQuantities
from forde.evaluation.runs.scores_file import FOLDER, RunScores
from forde.metrics.statistics import MEANS
from forde.training.outcome import Outcome
from forde.training.run_folder import CONFIG, METRICS, SESSIONS
from forde.training.writers import read_records


@dataclass(frozen=True)
class EvaluatedRun:
    """A run's folder, read."""

    name: str
    folder: Path
    scores: RunScores
    settings: dict[str, Any]
    """The content of `config.json`."""
    sessions: list[dict[str, Any]]
    """One for each start: time, versions, device."""
    records: list[dict[str, float]]
    """One for each epoch."""
    examples: Examples | None
    best_epoch: int | None
    """The best on validation data, from 0, where there were any."""

    @property
    def evaluation(self) -> Path:
        """The folder of the evaluation."""
        return self.folder / FOLDER

    @property
    def method(self) -> str:
        """The name of the method that it was trained with."""
        return str(self.settings.get("training", {}).get("method", {}).get("name") or "own method")

    @property
    def recipe(self) -> dict[str, Any]:
        """What `forde train` noted about network and data."""
        return dict(self.settings.get("about", {}).get("recipe", {}))

    @property
    def of_rows(self) -> bool:
        """Whether it was rows of a table that were shifted, and no images that were corrupted."""
        inputs = self.scores.data.get("inputs")
        return inputs == "rows" if inputs else self.scores.task == "regression"  # which earlier versions did not say

    @property
    def altered(self) -> str:
        """What its inputs are called that are not clean."""
        return "shifted" if self.of_rows else "corrupted"

    @property
    def corrupted_keys(self) -> list[Key]:
        """Each corruption and severity that was evaluated."""
        return [(name, level) for name, levels in self.scores.result.cells.items() for level in levels]

    @cached_property
    def clean_classes(self) -> SavedCell:
        """Predictions of classes for clean data."""
        return read_class_cell(self.evaluation, CLEAN_KEY)

    @cached_property
    def clean_quantities(self) -> SavedQuantities:
        """Predictions of a quantity for clean data."""
        return read_quantity_cell(self.evaluation, CLEAN_KEY)

    @cached_property
    def terms(self) -> dict[Key, Tensor]:
        """The terms of each sample in each cell of classes `[N, 8]`, clean data included."""
        return {key: read_class_cell(self.evaluation, key).terms for key in [CLEAN_KEY, *self.corrupted_keys]}

    def epistemic(self, key: Key) -> Tensor:
        """Of each sample of a cell `[N]`: in nats for classes, as standard deviation for a quantity."""
        if self.scores.task == "classification" and key in self.terms:
            return self.terms[key][:, MEANS.index("epistemic")]
        return epistemic_of(self.evaluation, self.scores.task, key)


FOREIGN_KEY: Key = (FOREIGN, 0)


def read_runs(folders: Sequence[str | Path]) -> list[EvaluatedRun]:
    """The runs of these folders, each under a name that no other has."""
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise FordeError("there is nothing to report: no run was given; name at least one folder of a run.")
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise FordeError(f"the run '{paths[place]}' was given twice; name each run once.")
    runs = [_read(path, name) for path, name in zip(paths, _names(resolved), strict=True)]
    for run in runs[1:]:
        if run.scores.task != runs[0].scores.task:
            raise FordeError(
                f"'{runs[0].folder}' is for {runs[0].scores.task} and '{run.folder}' for {run.scores.task}; "
                "report runs of one task."
            )
    return runs


def _names(paths: Sequence[Path]) -> list[str]:
    """As short as tells them apart: the last parts of each path."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _read(folder: Path, name: str) -> EvaluatedRun:
    scores, outcome = RunScores.load(folder), Outcome.read(folder)
    return EvaluatedRun(
        name, folder, scores, _json(folder / CONFIG), _lines(folder / SESSIONS), read_records(folder / METRICS),
        Examples.load(folder / FOLDER), None if outcome is None else outcome.best_epoch,
    )  # fmt: skip


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}  # a saved ensemble without a run; what it was trained with is left out
    return content if isinstance(content, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError, RecursionError):
        return []
    return [line for line in lines if isinstance(line, dict)]
