"""What the uncertainty is worth: histograms for known and foreign inputs, and the risk of answering when certain."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import torch
from torch import Tensor

from forde.evaluation.runs.predictions import CLEAN_KEY
from forde.metrics.selective import risk_coverage
from forde.metrics.statistics import MEANS
from forde.report.page.charts.common import chart, dashes_of_runs, finished, of_runs
from forde.report.page.parts import Figure, number, percent
from forde.report.page.runs import FOREIGN_KEY, EvaluatedRun

BINS = 40
POINTS = 100
COLOURS = {"clean": "#0072b2", "corrupted": "#d55e00", "shifted": "#d55e00", "foreign": "#7f7f7f"}


def histogram_figures(runs: Sequence[EvaluatedRun]) -> list[Figure]:
    """For each run the epistemic uncertainty of clean, corrupted and foreign inputs, on one scale for all runs."""
    values = {run.name: _epistemic(run) for run in runs}
    most = max(float(found.max()) for kinds in values.values() for found in kinds.values()) or 1.0
    return [_histogram(place, name, kinds, most, runs[0]) for place, (name, kinds) in enumerate(values.items())]


def _epistemic(run: EvaluatedRun) -> dict[str, Tensor]:
    found = {"clean": run.epistemic(CLEAN_KEY)}
    if run.corrupted_keys:
        found[run.altered] = torch.cat([run.epistemic(key) for key in run.corrupted_keys])
    if run.scores.foreign is not None:
        found["foreign"] = run.epistemic(FOREIGN_KEY)
    return found


def _histogram(place: int, name: str, kinds: dict[str, Tensor], most: float, run: EvaluatedRun) -> Figure:
    width = most / BINS
    rows = [
        {"kind": kind, "from": bin_ * width, "to": (bin_ + 1) * width, "share": float(count) / len(values)}
        for kind, values in kinds.items()
        for bin_, count in enumerate(torch.histc(values.double(), BINS, 0, most))
    ]
    classes = run.scores.task == "classification"
    # Without the target's name, which may be long: a title that is wider than the figure would be cut.
    title = "Epistemic uncertainty (nats)" if classes else "Epistemic σ (unit of the target)"
    scale = alt.Scale(domain=list(kinds), range=[COLOURS[kind] for kind in kinds])
    drawn = (
        chart(rows)
        .mark_area(interpolate="step-after", fillOpacity=0.3, line=True)
        .encode(
            x=alt.X("from:Q", title=title, scale=alt.Scale(domain=[0, most], nice=False),
                    axis=alt.Axis(tickCount=10)),
            # A root shows rare, uncertain samples beside the many that are certain.
            y=alt.Y("share:Q", stack=None, title="Share of samples (root scale)", axis=alt.Axis(format="%"),
                    scale=alt.Scale(type="sqrt")),
            color=alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None, orient="top")),
            tooltip=["kind:N", alt.Tooltip("from:Q", format=".3f"), alt.Tooltip("share:Q", format=".1%")],
        )
    )  # fmt: skip
    means = ", ".join(f"{number(float(values.mean()))} for {kind} inputs" for kind, values in kinds.items())
    text = f"Histogram of the epistemic uncertainty of {name}: mean {means}."
    return Figure(
        f"epistemic-{place}", name, f"Mean {means}. It should grow from clean over {run.altered} to foreign.", text,
        finished(drawn, text),
    )  # fmt: skip


def risk_figures(runs: Sequence[EvaluatedRun]) -> list[Figure]:
    """Error of the share of samples that is answered, the most certain first; for clean and for corrupted data."""
    figures = [_risk(runs, "clean", "clean", {run.name: _clean_pair(run) for run in runs})]
    if runs[0].scores.task == "classification" and all(run.corrupted_keys for run in runs):
        pairs = {run.name: _pair(torch.cat([run.terms[key] for key in run.corrupted_keys])) for run in runs}
        figures.append(_risk(runs, "corrupted", runs[0].altered, pairs))
    return figures


def _clean_pair(run: EvaluatedRun) -> tuple[Tensor, Tensor]:
    if run.scores.task == "classification":
        return _pair(run.terms[CLEAN_KEY])
    saved = run.clean_quantities
    return saved.prediction.std, (saved.prediction.mean - saved.y).square()


def _pair(terms: Tensor) -> tuple[Tensor, Tensor]:
    """Total entropy and whether the label was wrong: `[N, 8]` → `[N]`, `[N]`."""
    return terms[:, MEANS.index("total")], 1 - terms[:, MEANS.index("accuracy")]


def _risk(runs: Sequence[EvaluatedRun], id_: str, kind: str, pairs: dict[str, tuple[Tensor, Tensor]]) -> Figure:
    classes = runs[0].scores.task == "classification"
    rows, spoken = [], []
    for name, (uncertainty, loss) in pairs.items():
        found = risk_coverage(uncertainty, loss)
        risk = found.risk if classes else found.risk.sqrt()
        n = len(risk)
        chosen = sorted({max(1, round(n * k / POINTS)) - 1 for k in range(1, POINTS + 1)})
        rows += [{"run": name, "coverage": float(found.coverage[i]), "risk": float(risk[i])} for i in chosen]
        half, full = risk[max(1, round(0.8 * n)) - 1], risk[-1]
        words = (percent(float(half)), percent(float(full))) if classes else (number(float(half)), number(float(full)))
        verb = "errs" if classes else "has an RMSE of"
        spoken.append(f"{name} {verb} {words[0]} on the most certain 80 % and {words[1]} on all")
    names = [run.name for run in runs]
    axis = alt.Axis(format="%") if classes else alt.Axis()
    drawn = (
        chart(rows)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("coverage:Q", title="Share answered, most certain first", scale=alt.Scale(domain=[0, 1]),
                    axis=alt.Axis(format="%", tickCount=6)),
            y=alt.Y("risk:Q", title="Error rate" if classes else "RMSE", axis=axis),
            color=of_runs(names),
            strokeDash=dashes_of_runs(names),
            tooltip=["run:N", alt.Tooltip("coverage:Q", format=".0%"), alt.Tooltip("risk:Q", format=".3f")],
        )
    )  # fmt: skip
    text = f"Risk over coverage on {kind} data: {'; '.join(spoken)}."
    by = "entropy" if classes else "predictive standard deviation"
    caption = f"Samples of high {by} are left to a human first. {'; '.join(spoken)}."
    return Figure(f"risk-{id_}", f"On {kind} data", caption, text, finished(drawn, text))
