"""Is one saved evaluation better than another? Paired by image, with a test of significance.

Both evaluations saw the same images, so what is hard for one is hard for the other; comparing image by image removes
that shared variation. Differences are second − first.

    standard error, interval   paired bootstrap: images are resampled, with all their corrupted copies, for both alike
    p-value                    permutation: if the two were exchangeable, swapping their predictions for a random half
                               of the images would give differences d* as large as d, the one found;
                               p = (1 + #{|d*| ≥ |d|}) / (1 + R), two-sided
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.evaluation.robustness.cells import CLEAN
from forde.evaluation.robustness.devices import float64_device
from forde.evaluation.robustness.resampling import resampler
from forde.evaluation.robustness.saved_evaluations import Folder, saved_evaluation
from forde.metrics.statistics import Scoring, average_scores, pooled_scores, scores, statistics

Key = tuple[str, int]


class Difference(NamedTuple):
    """Second − first, of one metric."""

    value: float
    error: float
    """Paired bootstrap standard error."""
    low: float
    """Lower end of the 95 % bootstrap interval."""
    high: float
    """Upper end."""
    p_value: float
    """Of the permutation test; not corrected for looking at many metrics or cells."""


Differences = dict[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """Second − first evaluation, for each metric."""

    clean: Differences
    pooled: Differences
    cell_average: Differences
    cells: dict[str, dict[int, Differences]]
    """Each corruption and severity."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and numbers, for JSON."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        """The summary as a table, and in how many cells the second was better."""
        lines = [f"{'second − first':<34}{'difference':>12}{'± error':>10}{'95 % interval':>22}{'p':>8}"]
        for where in ("clean", "pooled", "cell_average"):
            for metric in ("accuracy", "rmse", "nll", "crps", "ece", "brier", "epistemic"):
                if difference := getattr(self, where).get(metric):
                    value, error, low, high, p = difference
                    interval = f"[{low:+.4f}, {high:+.4f}]"
                    lines.append(f"{where + ' ' + metric:<34}{value:>+12.4f}{error:>10.4f}{interval:>22}{p:>8.4f}")
        cells = [cell for levels in self.cells.values() for cell in levels.values()]
        if cells:
            known = [metric for metric in ("accuracy", "rmse", "nll", "ece") if metric in cells[0]]
            wins = {m: sum((c[m].value > 0) if m == "accuracy" else (c[m].value < 0) for c in cells) for m in known}
            text = ", ".join(f"{metric} {count}" for metric, count in wins.items())
            lines.append(f"cells of {len(cells)} in which the second is better: {text}")
        return "\n".join(lines)


def compare_evaluations(
    first: Folder,
    second: Folder,
    *,
    n_resamples: int = 1000,
    n_bins: int = 15,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Comparison:
    """Compare two evaluations that `evaluate_robustness` saved, of the same images and cells."""
    _, cells_a = saved_evaluation(first)
    _, cells_b = saved_evaluation(second)
    refuse_different_cells(cells_a, cells_b)
    where = float64_device(torch.device(device))
    bootstrap = resampler("bootstrap", n_resamples, seed, where)
    swap = resampler("swap", n_resamples, seed + 1, where)
    pairs = {}
    for key in cells_a:
        a, b = cells_a[key](), cells_b[key]()
        if not torch.equal(a.labels, b.labels):
            raise FordeError(
                f"the evaluations have different labels {cell_in_words(key)}; evaluate both on the same images."
            )
        rows = torch.stack([statistics(cell.terms.to(where), n_bins) for cell in (a, b)])
        pairs[key] = paired_sums(rows, bootstrap(a.labels), swap(a.labels))
    return comparison_of(pairs)


def refuse_different_cells(first: Iterable[Key], second: Iterable[Key]) -> None:
    """Stop where two evaluations have not the same corruptions and severities.

    >>> refuse_different_cells([("clean", 0), ("fog", 1)], [("fog", 1), ("clean", 0)])
    """
    if difference := set(first) ^ set(second):
        raise FordeError(
            f"only one of the evaluations was made {cell_in_words(min(difference))}; make both under the same "
            "corruptions and severities."
        )


def cell_in_words(key: Key) -> str:
    """Where a cell was evaluated, for a sentence.

    >>> cell_in_words(("fog", 3)), cell_in_words((CLEAN, 0))
    ('under fog of severity 3', 'on clean data')
    """
    return "on clean data" if key[0] == CLEAN else f"under {key[0]} of severity {key[1]}"


def comparison_of(pairs: Mapping[Key, Tensor], scoring: Scoring = scores) -> Comparison:
    """The differences from `paired_sums` of each cell and of clean data, whatever metrics their sums hold."""
    average, pooled = partial(average_scores, scoring=scoring), partial(pooled_scores, scoring=scoring)
    corrupted = {key: value for key, value in pairs.items() if key[0] != CLEAN}
    cells: dict[str, dict[int, Differences]] = {}
    for (name, severity), sums in corrupted.items():
        cells.setdefault(name, {})[severity] = _differences({(name, severity): sums}, average)
    return Comparison(
        clean=_differences({(CLEAN, 0): pairs[CLEAN, 0]}, average),
        pooled=_differences(corrupted, pooled) if corrupted else {},
        cell_average=_differences(corrupted, average) if corrupted else {},
        cells=cells,
    )


def paired_sums(rows: Tensor, bootstrap: Tensor, swap: Tensor) -> Tensor:
    """Rows of both `[2, N, K]`, weights `[R, N]` → sums `[2, 1 + 2R, K]` of data, of bootstrap samples, of swaps."""
    data = rows.sum(1, keepdim=True)
    exchanged = swap @ (rows[1] - rows[0])
    swapped = data + torch.stack([exchanged, -exchanged])
    return torch.cat([data, bootstrap @ rows, swapped], dim=1).cpu()


def _differences(
    pairs: Mapping[Key, Tensor], aggregate: Callable[[Mapping[Key, Tensor]], dict[str, Tensor]]
) -> Differences:
    """Sums `[2, 1 + 2R, K]` of each cell, aggregated to scores `[2, 1 + 2R]` → differences."""
    found = {}
    for name, values in aggregate(pairs).items():
        change = values[1] - values[0]
        resamples, swaps = change[1:].chunk(2)
        value = change[0]
        # Sums in another order round differently; a swap of nothing must count as equal.
        as_large = (swaps.abs() >= value.abs() - 1e-12).sum()
        low, high = torch.quantile(resamples, torch.tensor([0.025, 0.975], dtype=resamples.dtype))
        p_value = (1 + int(as_large)) / (1 + len(swaps))
        found[name] = Difference(float(value), float(resamples.std()), float(low), float(high), p_value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Difference):
        return value._asdict()
    return {str(key): _plain(item) for key, item in value.items()}
