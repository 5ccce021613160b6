"""`scores.json`: what an evaluation of a run found, in one documented form for classes and for quantities.

    format      1
    forde       version that wrote it
    task        "classification" or "regression"
    data        name, split, samples, source, inputs ("images" or "rows") of the clean data; names of classes, name of
                the target
    clean       metric → {"value", "error"}; the error is a bootstrap standard error over samples
    pooled      the same for corrupted data: within a severity all types scored as one data set, mean of severities
    cell_average, severities, severities_cell_average, types, cells
                as in `forde.evaluation.RobustnessResult`; empty where nothing was corrupted
    foreign     null, or name, samples, source, uncertainty → {"value", "error"}, and
                auroc: uncertainty → {"value", "error"}, how well it tells foreign from clean inputs
    cost        members, parameters (of all members), bytes (of the weights), ms_per_sample, device, batch
    settings    n_bootstrap, seed, precision, sources of corruptions, the command that makes this again (or null), and
                what the task needs beside

Metrics of classes are those of `forde.evaluation.score_batches`; of quantities rmse, nll, crps, epistemic_std,
aleatoric_std, total_std and coverage_50 … coverage_95, in units of the target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forde._version import __version__
from forde.durable import write_whole
from forde.errors import FordeError
from forde.evaluation.robustness.results import RobustnessResult

Task = Literal["classification", "regression"]
FOLDER, SCORES = "evaluation", "scores.json"
"""Folder within that of a run, and the file in it."""
FORMAT = 1
MOST_BYTES = 1 << 26


@dataclass(frozen=True)
class RunScores:
    """An evaluation of a run, as `scores.json` holds it."""

    task: Task
    data: dict[str, Any]
    result: RobustnessResult
    foreign: dict[str, Any] | None
    cost: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and numbers, for JSON."""
        head = {"format": FORMAT, "forde": __version__, "task": self.task, "data": self.data}
        return {**head, **self.result.to_dict(), "foreign": self.foreign, "cost": self.cost}

    def save(self, path: Path) -> Path:
        """Write `to_dict()` as JSON."""
        write_whole(path, (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        return path

    @classmethod
    def load(cls, folder: str | Path) -> RunScores:
        """The scores of a run, from its folder."""
        path = Path(folder) / FOLDER / SCORES
        if not path.is_file():
            raise FordeError(f"'{folder}' has not been evaluated; run: forde evaluate {folder}")
        try:
            with path.open("rb") as file:
                content = json.loads(file.read(MOST_BYTES))
            if content["format"] != FORMAT:
                raise FordeError(
                    f"'{path}' has format {content['format']!r}, but {FORMAT} was expected; evaluate the run again."
                )
            result = RobustnessResult.from_dict(content)
            return cls(content["task"], content["data"], result, content["foreign"], content["cost"])
        except FordeError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FordeError(f"'{path}' is damaged; evaluate the run again.") from None
