"""Reliability diagrams: how often predictions of a confidence are right."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import torch
from torch import Tensor

from forde.evaluation.runs.predictions import CLEAN_KEY
from forde.metrics.classification import bin_index
from forde.metrics.statistics import MEANS
from forde.report.page.charts.common import chart, dashes_of_runs, finished, of_runs
from forde.report.page.parts import Figure, percent
from forde.report.page.runs import EvaluatedRun

BINS = 15


def reliability_figures(runs: Sequence[EvaluatedRun]) -> list[Figure]:
    """One for clean data, one for all corrupted data together."""
    figures = [_figure(runs, "clean", "clean", {run.name: run.terms[CLEAN_KEY] for run in runs})]
    if all(run.corrupted_keys for run in runs):
        everything = {run.name: torch.cat([run.terms[key] for key in run.corrupted_keys]) for run in runs}
        figures.append(_figure(runs, "corrupted", runs[0].altered, everything))
    return figures


def _figure(runs: Sequence[EvaluatedRun], id_: str, kind: str, terms: dict[str, Tensor]) -> Figure:
    rows = [{"run": name, **point} for name, found in terms.items() for point in _points(found)]
    names = [run.name for run in runs]
    share = alt.Scale(domain=[0, 1])
    base = chart(rows).encode(
        x=alt.X("confidence:Q", title="Confidence", scale=share, axis=alt.Axis(format="%", tickCount=6)),
        y=alt.Y("accuracy:Q", title="Accuracy", scale=share, axis=alt.Axis(format="%", tickCount=6)),
        color=of_runs(names),
    )
    ideal = (
        chart([{"at": 0}, {"at": 1}])
        .mark_line(strokeDash=[4, 4], color="currentColor", opacity=0.5)
        .encode(x="at:Q", y="at:Q")
    )
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dashes_of_runs(names))
    points = base.mark_point(filled=True, opacity=0.9).encode(
        size=alt.Size("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[15, 400])),
        tooltip=["run:N", *(alt.Tooltip(f"{n}:Q", format=".1%") for n in ("confidence", "accuracy", "share"))],
    )
    spoken = "; ".join(
        f"{name} is on average {percent(float(found[:, MEANS.index('confidence')].mean()))} sure and right in "
        f"{percent(float(found[:, MEANS.index('accuracy')].mean()))}"
        for name, found in terms.items()
    )
    text = f"Reliability diagram on {kind} data: accuracy over confidence, one line per run. {spoken}."
    return Figure(
        f"reliability-{id_}",
        f"On {kind} data",
        "On the dashed line confidence is honest; below it the run is too sure, above it not sure enough. Large dots "
        "stand for many samples.",
        text,
        finished(ideal + lines + points, text),
    )


def _points(terms: Tensor) -> list[dict[str, float]]:
    """Mean confidence and accuracy in each bin that holds something: `[N, 8]` → at most BINS."""
    confidence, correct = terms[:, MEANS.index("confidence")], terms[:, MEANS.index("accuracy")]
    place = bin_index(confidence, BINS)
    count, sure, right = (
        torch.zeros(BINS, dtype=torch.float64).index_add(0, place, values.double())
        for values in (torch.ones_like(confidence), confidence, correct)
    )
    return [
        {"confidence": float(s / n), "accuracy": float(r / n), "share": float(n / len(terms))}
        for n, s, r in zip(count, sure, right, strict=True)
        if n > 0
    ]
