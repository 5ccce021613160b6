"""How uncertain a run is about inputs like those of training: what a new input's uncertainty is compared with.

With u the uncertainty of a new input and r_1 … r_N those of reference samples,

    share(u) = (1 + #{r_n ≥ u}) / (N + 1)

is the p-value of a conformal test: if the new input were one more of the same kind, share(u) ≤ a would happen with
probability a at most. So "do not trust what has a share below 0.05" marks about one in twenty of such inputs, and more
of others. No threshold on the uncertainty itself is needed.

The uncertainty is the entropy of the averaged probabilities for classes, which is high where members disagree and where
they are all unsure; and for a quantity the standard deviation between members, since the noise that they all state is
in the interval already. One network has nobody to disagree with, so its quantities have the stated deviation instead.

The reference is the validation data of `forde train`; else the clean test data of `forde evaluate`; else the training
data, which members know, so that more of other data is marked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from forde.data.description import Images, Table
from forde.durable import write_whole
from forde.errors import FordeError
from forde.evaluation.runs.predictions import CLEAN_KEY, epistemic_of, read_class_cell, read_quantity_cell
from forde.evaluation.runs.scores_file import FOLDER, RunScores
from forde.metrics.statistics import MEANS
from forde.prediction import ClassificationPrediction, Prediction, RegressionPrediction
from forde.training.trained import TrainedRun

NAME = "reference.json"
MOST = 5000
"""Samples; more would say little."""
MOST_BYTES = 1 << 22
Kind = Literal["validation", "test", "training"]


@dataclass(frozen=True)
class Reference:
    """Uncertainties of samples like those of training.

    >>> reference = Reference("validation", torch.tensor([0.1, 0.2, 0.3]))
    >>> reference.share(torch.tensor([0.0, 0.25, 0.9])).tolist()
    [1.0, 0.5, 0.25]
    """

    kind: Kind
    """Of which data."""
    uncertainty: Tensor
    """`[N]`, ascending."""

    def __str__(self) -> str:
        """What it is, for a sentence."""
        known = ", which members know" if self.kind == "training" else ""
        return f"{len(self.uncertainty):,} {self.kind} samples{known}"

    def share(self, uncertainty: Tensor) -> Tensor:
        """The share of the reference that is at least as uncertain, the new input among them: `[B]`, from 1/(N+1)."""
        of = self.uncertainty.double()
        least = torch.searchsorted(of, uncertainty.double().contiguous())
        return (1 + len(of) - least) / (len(of) + 1)

    def save(self, folder: Path) -> None:
        """Into the folder of a run."""
        values = [float(f"{value:.6g}") for value in self.uncertainty.tolist()]
        write_whole(folder / NAME, (json.dumps({"kind": self.kind, "uncertainty": values}) + "\n").encode())


def uncertainty_of(prediction: Prediction) -> Tensor:
    """What is compared: `[B]`, of classes in nats, of a quantity in its unit."""
    if isinstance(prediction, ClassificationPrediction):
        return prediction.total
    if isinstance(prediction, RegressionPrediction) and prediction.mean.dim() == 1:
        alone = len(prediction.member_means) == 1
        return prediction.std if alone else prediction.epistemic.sqrt()
    raise FordeError(
        f"new inputs are compared by the uncertainty of a class or of one quantity, and a {type(prediction).__name__} "
        "has none; call forde.load_run(...).predict for such a run."
    )


def make_reference(run: TrainedRun, data: Images | Table, kind: Kind) -> Reference:
    """From samples in their own units; of many, evenly spaced ones."""
    index = torch.linspace(0, len(data) - 1, min(len(data), MOST)).round().long().numpy()
    part = data.images[index] if isinstance(data, Images) else data.x[index]
    return Reference(kind, uncertainty_of(run.predict(part)).sort().values)


def reference_of(run: TrainedRun) -> Reference | None:
    """The best there is in the folder of a run; None where there is none."""
    kept = _read(run.folder / NAME)
    if kept is not None and kept.kind == "validation":
        return kept
    return _evaluated(run) or kept


def _evaluated(run: TrainedRun) -> Reference | None:
    """Of clean test data, where the run was evaluated on it."""
    try:
        scores = RunScores.load(run.folder)
        folder = run.folder / FOLDER
        own = str((run.settings.get("data") or {}).get("name", ""))
        if scores.data["split"] != "test" or (own != scores.data["name"] and own not in scores.data["source"]):
            return None  # of other data
        if scores.task == "classification":
            found = read_class_cell(folder, CLEAN_KEY).terms[:, MEANS.index("total")]
        elif run.ensemble.n_members == 1:
            found = read_quantity_cell(folder, CLEAN_KEY).prediction.std
        else:
            found = epistemic_of(folder, scores.task)
    except FordeError:
        return None
    return Reference("test", found.sort().values)


def _read(path: Path) -> Reference | None:
    try:
        with path.open("rb") as file:
            content: Any = json.loads(file.read(MOST_BYTES))
        values = torch.tensor(content["uncertainty"], dtype=torch.float64)
        kind = content["kind"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if kind not in ("validation", "test", "training") or values.dim() != 1 or not len(values):
        return None
    return Reference(kind, values.sort().values)
