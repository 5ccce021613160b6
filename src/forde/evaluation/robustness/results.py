"""What a robustness evaluation found: estimates with standard errors, as a dataclass, JSON and text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from forde.durable import write_whole
from forde.errors import FordeError
from forde.evaluation.robustness.cells import CLEAN
from forde.evaluation.robustness.precision import without_dtype
from forde.metrics.statistics import Scoring, Sums, average_scores, pooled_scores, scores

MANIFEST = "evaluation.json"
"""The result's file in a folder of saved predictions, written last; it names the fingerprint of each cell's file."""
IN_UNITS = frozenset({"rmse", "crps", "epistemic_std", "aleatoric_std", "total_std"})
"""Metrics in the unit of the target, which may be of any size."""
SHOWN = {
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "nll": "NLL",
    "crps": "CRPS",
    "coverage_95": "in 95 %",
    "ece": "ECE",
    "brier": "Brier",
    "epistemic": "MI",
    "disagreement": "disagree",
}


class Estimate(NamedTuple):
    """A metric and its bootstrap standard error."""

    value: float
    error: float


Scores = dict[str, Estimate]
"""One estimate for each name in METRICS."""


@dataclass(frozen=True)
class RobustnessResult:
    """Metrics on clean and corrupted data. Entropies are in nats; `epistemic` is the mutual information."""

    clean: Scores
    pooled: Scores
    """Within a severity all types are concatenated and scored once; mean of severities: the paper's cA, cNLL, cECE."""
    cell_average: Scores
    """Mean over cells. The same accuracy and NLL where cells have equal sizes; an ECE that is no smaller."""
    severities: dict[int, Scores]
    """Each severity, its types pooled."""
    severities_cell_average: dict[int, Scores]
    """Each severity, mean over its cells."""
    types: dict[str, Scores]
    """Each corruption, mean over its severities."""
    cells: dict[str, dict[int, Scores]]
    """Each corruption and severity."""
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and numbers: each estimate as `{"value": …, "error": …}`."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}

    def save(self, path: str | Path) -> Path:
        """Write `to_dict()` as JSON."""
        target = Path(path)
        write_whole(target, (json.dumps(self.to_dict(), indent=1) + "\n").encode())
        return target

    @classmethod
    def load(cls, path: str | Path) -> RobustnessResult:
        """Read what `save` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FordeError(f"'{path}' is not a robustness result; expected a file that its save() wrote.") from None

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RobustnessResult:
        """Inverse of `to_dict`; keys of other meaning beside them are passed over."""
        return cls(
            clean=_scores(content["clean"]),
            pooled=_scores(content["pooled"]),
            cell_average=_scores(content["cell_average"]),
            severities=_by_severity(content["severities"]),
            severities_cell_average=_by_severity(content["severities_cell_average"]),
            types={name: _scores(value) for name, value in content["types"].items()},
            cells={name: _by_severity(value) for name, value in content["cells"].items()},
            settings=without_dtype(content["settings"]),
        )

    def __str__(self) -> str:
        """Tables of the summary, the severities and the types."""
        rows = {"clean": self.clean}
        if self.cells:
            rows |= {"corrupted, pooled": self.pooled, "corrupted, cells": self.cell_average}
        parts = [table("data", rows)]
        if self.cells:
            parts.append(table("severity (pooled)", {str(level): value for level, value in self.severities.items()}))
            parts.append(table("corruption", self.types))
        return "\n\n".join(parts)


def summarise(sums: Sums, settings: dict[str, Any], scoring: Scoring = scores) -> RobustnessResult:
    """Sums of statistics `[1 + R, K]` of each cell and of clean data → result; row 0 is the data, then resamples."""
    cells = {key: value for key, value in sums.items() if key[0] != CLEAN}
    types = list(dict.fromkeys(name for name, _ in cells))
    levels = sorted({severity for _, severity in cells})
    at_level = {level: {key: value for key, value in cells.items() if key[1] == level} for level in levels}
    of_type = {name: {key: value for key, value in cells.items() if key[0] == name} for name in types}
    return RobustnessResult(
        clean=estimates(scoring(sums[CLEAN, 0])),
        pooled=estimates(pooled_scores(cells, scoring)) if cells else {},
        cell_average=estimates(average_scores(cells, scoring)) if cells else {},
        severities={level: estimates(pooled_scores(part, scoring)) for level, part in at_level.items()},
        severities_cell_average={level: estimates(average_scores(part, scoring)) for level, part in at_level.items()},
        types={name: estimates(average_scores(part, scoring)) for name, part in of_type.items()},
        cells={
            name: {severity: estimates(scoring(value)) for (_, severity), value in part.items()}
            for name, part in of_type.items()
        },
        settings=settings,
    )


def estimates(replicates: Mapping[str, Tensor]) -> Scores:
    """`[1 + R]` values of each metric, the first of the data and the others of resamples → value and standard error."""
    return {name: Estimate(float(values[0]), float(values[1:].std())) for name, values in replicates.items()}


def table(title: str, rows: Mapping[str, Scores]) -> str:
    """Rows of estimates as text, `value ± error`, for those metrics that they have.

    >>> from forde.metrics.statistics import METRICS
    >>> print(table("data", {"clean": {name: Estimate(0.5, 0.01) for name in METRICS}}).splitlines()[1][:24])
    clean  0.5000 ± 0.0100
    """
    shown = {key: heading for key, heading in SHOWN.items() if all(key in row for row in rows.values())}
    header = [title, *shown.values()]
    lines = [[name, *(_shown(key, row[key]) for key in shown)] for name, row in rows.items()]
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *lines]
    )


def decimals(metric: str, error: float) -> int:
    """Decimals that a metric is shown with: in the unit of a target its error has two digits, as prices need none.

    >>> decimals("nll", 0.02), decimals("rmse", 1323.3), decimals("rmse", 15.9), decimals("rmse", 0.000012)
    (4, 0, 0, 6)
    """
    if metric not in IN_UNITS or not 0 < error < math.inf:
        return 4
    return min(12, max(0, 1 - math.floor(math.log10(error))))


def _shown(metric: str, estimate: Estimate) -> str:
    places = decimals(metric, estimate.error)
    return f"{estimate.value:,.{places}f} ± {estimate.error:,.{places}f}"


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value._asdict()
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _scores(content: Mapping[str, Any]) -> Scores:
    return {name: Estimate(**value) for name, value in content.items()}


def _by_severity(content: Mapping[str, Any]) -> dict[int, Scores]:
    return {int(level): _scores(value) for level, value in content.items()}
