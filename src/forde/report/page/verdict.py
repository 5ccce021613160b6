"""What there is to say about the runs, in three sentences: how good, how much better, and how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from forde.evaluation.robustness.comparison import Comparison, Difference
from forde.evaluation.runs.predictions import CLEAN_KEY
from forde.metrics.selective import risk_coverage
from forde.metrics.statistics import MEANS
from forde.report.page.parts import number, percent, signed
from forde.report.page.runs import EvaluatedRun

ANSWERED = 0.8
HONEST = 0.02
"""Difference of confidence and accuracy up to which probabilities are called honest."""
PROMISED = 0.95
"""Share of targets that the intervals of the verdict should hold."""
CLEAR = 2.0
"""Standard errors beyond which a difference is more than noise."""


def verdict(runs: Sequence[EvaluatedRun], comparisons: Mapping[str, Comparison]) -> list[str]:
    """Three sentences; those of several runs are about the one with the best NLL."""
    best = best_run(runs)
    return [_how_good(best), _how_much_better(runs, best, comparisons), _how_far_to_trust(best)]


def best_run(runs: Sequence[EvaluatedRun]) -> EvaluatedRun:
    """The run of the smallest NLL: under corruption where all were corrupted, else on clean data."""
    corrupted = all(run.corrupted_keys for run in runs)
    return min(
        runs, key=lambda run: (run.scores.result.cell_average if corrupted else run.scores.result.clean)["nll"].value
    )


def _how_good(run: EvaluatedRun) -> str:
    result, data = run.scores.result, run.scores.data
    samples = f"{data['samples']:,}"
    kind = "shift" if run.of_rows else "corruption"
    many = f" (mean of {_count(len(result.cells), kind)} at {_count(len(result.severities), 'severity')})"
    if run.scores.task == "regression":
        off = f"{run.name} is off by {number(result.clean['rmse'].value)} (RMSE) on {samples} rows of {data['name']}"
        after = f", and by {number(result.cell_average['rmse'].value)} on shifted rows{many}" if result.cells else ""
        return f"{off}{after}; its NLL is {number(result.clean['nll'].value)}."
    right = f"{run.name} labels {percent(result.clean['accuracy'].value)} of {samples} clean samples of {data['name']}"
    after = ""
    if result.cells:
        average = result.cell_average
        after = (
            f"; {_where(run)}{many} it labels {percent(average['accuracy'].value)} correctly, and its NLL "
            f"{_moved(result.clean['nll'].value, average['nll'].value)}"
        )
    return f"{right} correctly{after}.{_no_better_than_guessing(run)}"


def _moved(before: float, after: float) -> str:
    """How a number changed, as far as its digits show it.

    >>> _moved(0.2, 0.5), _moved(96.9, 53.6), _moved(0.2, 0.2)
    ('rises from 0.200 to 0.500', 'falls from 96.9 to 53.6', 'stays at 0.200')
    """
    first, then = number(before), number(after)
    return f"stays at {first}" if first == then else f"{'rises' if after > before else 'falls'} from {first} to {then}"


def _no_better_than_guessing(run: EvaluatedRun) -> str:
    """A warning where the probabilities say less than equal ones would: all else on the page is then of little use."""
    classes = run.scores.data.get("classes") or ()
    found = run.scores.result.clean["nll"].value
    if not classes or found <= math.log(len(classes)):
        return ""
    equal = f"the same probability for each of the {len(classes)} classes"
    return f" Its NLL on clean data is {number(found)}, which is worse than {equal} ({number(math.log(len(classes)))})."


def _how_much_better(runs: Sequence[EvaluatedRun], best: EvaluatedRun, comparisons: Mapping[str, Comparison]) -> str:
    if len(runs) == 1:
        return "Nothing is said about other methods: name a second run, such as a deep ensemble, to compare it with."
    first = runs[0]
    other = next((run for run in runs[1:]), first) if best is first else best
    if other.name not in comparisons:
        return f"{first.name} and {other.name} were evaluated on different data, so their differences mean nothing."
    comparison = comparisons[other.name]
    places = [(_where(first), comparison.cell_average), ("on clean data", comparison.clean)]
    said = [f"{where} by {_judged(found['nll'], first, other)}" for where, found in places if found]
    return f"The NLL of {other.name} differs from that of {first.name} (lower is better) {'; '.join(said)}."


def _judged(found: Difference, first: EvaluatedRun, other: EvaluatedRun) -> str:
    """The difference, and whether it is more than noise."""
    value = f"{signed(found.value)} ± {number(found.error, 2)}"
    if abs(found.value) <= CLEAR * found.error or found.value == 0:
        return f"{value}, which is within the noise of these test samples"
    better = other if found.value < 0 else first
    return f"{value}, so that {better.name} is better on these test samples (p = {number(found.p_value, 1)})"


def _how_far_to_trust(run: EvaluatedRun) -> str:
    result, foreign = run.scores.result, run.scores.foreign
    known = "" if foreign is None else f", and {_how_foreign(foreign)}"
    if run.scores.task == "regression":
        held = result.clean["coverage_95"].value
        # The error of honest intervals on so many rows: that of the bootstrap is 0 where they hold all targets.
        error = math.sqrt(PROMISED * (1 - PROMISED) / run.scores.data["samples"])
        sentence = f"Its 95 % intervals hold {percent(held)} of the targets"
        if abs(held - PROMISED) <= CLEAR * error:
            return f"{sentence}, so they are honest as far as {run.scores.data['samples']:,} rows can tell{known}."
        return f"{sentence}, so they are too {'narrow' if held < PROMISED else 'wide'}{known}."
    worse = result.cell_average if result.cells else result.clean
    gap = worse["confidence"].value - worse["accuracy"].value
    sure = "too sure" if gap > 0 else "not sure enough"
    if abs(gap) <= HONEST:
        sure = "honest"
    elif abs(gap) <= CLEAR * worse["accuracy"].error:
        sure = f"honest as far as {run.scores.data['samples']:,} samples can tell"
    where = _where(run) if result.cells else "on clean data"
    terms = run.terms[CLEAN_KEY]
    risk = risk_coverage(terms[:, MEANS.index("total")], 1 - terms[:, MEANS.index("accuracy")]).risk
    kept = float(risk[max(1, round(ANSWERED * len(risk))) - 1])
    gain = _gained(float(risk[-1]), kept)
    return (
        f"Its probabilities are {sure} {where} (mean confidence {percent(worse['confidence'].value)}); {gain}{known}."
    )


def _gained(whole: float, kept: float) -> str:
    """What leaving the least certain answers out does to the error of them all.

    >>> _gained(0.25, 0.1)
    'leaving the least certain 20 % of clean samples to a human lowers the error from 25.0 % to 10.0 %'
    >>> _gained(0.62, 0.625)
    'leaving the least certain 20 % of clean samples to a human does not lower the error (62.0 %, then 62.5 %)'
    """
    if whole == 0:
        return "of clean samples none is labelled wrongly"
    said = "leaving the least certain 20 % of clean samples to a human"
    if kept < whole:
        return f"{said} lowers the error from {percent(whole)} to {percent(kept)}"
    return f"{said} does not lower the error ({percent(whole)}, then {percent(kept)})"


def _how_foreign(foreign: Mapping[str, Any]) -> str:
    """What the uncertainty says of foreign inputs: a high AUROC is a warning, one of a half or below is none.

    >>> _how_foreign({"name": "noise", "auroc": {"total": {"value": 0.9, "error": 0.01}}})
    'its uncertainty tells noise from known inputs with an AUROC of 0.900'
    >>> _how_foreign({"name": "noise", "auroc": {"epistemic": {"value": 0.2, "error": 0.01}}})
    'its epistemic uncertainty is lower for noise than for known inputs (AUROC 0.200), so it does not warn of them'
    """
    kind, found = next(iter(foreign["auroc"].items()))
    words = "epistemic uncertainty" if kind.startswith("epistemic") else "uncertainty"
    area, error, name = found["value"], found["error"], foreign["name"]
    behind = f"AUROC {number(area)}"
    if abs(area - 0.5) <= CLEAR * error:
        return f"its {words} does not tell {name} from known inputs ({behind})"
    if area < 0.5:
        return f"its {words} is lower for {name} than for known inputs ({behind}), so it does not warn of them"
    return f"its {words} tells {name} from known inputs with an {behind.replace(' ', ' of ')}"


def _where(run: EvaluatedRun) -> str:
    return "on shifted rows" if run.of_rows else "under corruption"


def _count(n: int, word: str) -> str:
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{n} {word if n == 1 else plural}"
