"""Metrics under corruption: a curve over severities, and a heat map of corruptions. Both follow the page's choices.

Two signals come from the page: `metric`, the name of the metric shown, and `hidden`, the corruptions left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from forde.report.page.charts.common import LINE, ROW, chart, dashes_of_runs, finished, in_lines, of_runs, wrapped
from forde.report.page.parts import SHOWN, WORDS, Figure, of_metric
from forde.report.page.runs import EvaluatedRun

SHOWS_VALUE = "datum[metric]"
IS_SHOWN = "indexof(hidden, datum.corruption) < 0"
TICK = "datum.value != 0 && abs(datum.value) < 1e-4 ? format(datum.value, '.2~e') : format(datum.value, ',.6~r')"
"""All digits of a tick: without it Vega-Lite writes 1 beside a flat line at 0.5, whose axis has one tick."""
LETTERS = 32
"""That fit above a heat map on a phone."""


def severity_figure(runs: Sequence[EvaluatedRun]) -> Figure:
    """Mean over the corruptions shown, for each severity and run; severity 0 is clean data."""
    metrics = SHOWN[runs[0].scores.task]
    rows = []
    for run in runs:
        result = run.scores.result
        for name, levels in result.cells.items():
            # Clean data belong to every corruption, so that they stay whichever is left out.
            for level, found in {0: result.clean, **levels}.items():
                rows.append(
                    {"run": run.name, "corruption": name, "severity": level}
                    | {metric: found[metric].value for metric in metrics}
                )
    x = alt.X("severity:O", title="Severity (0: clean)", axis=alt.Axis(labelAngle=0))
    y = alt.Y(
        "value:Q", title=None, aggregate="mean", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=8, labelExpr=TICK)
    )
    base = (
        chart(rows)
        .transform_filter(IS_SHOWN)
        .transform_calculate(value=SHOWS_VALUE)
        .encode(x=x, y=y, color=of_runs(_names(runs)))
    )
    lines = base.mark_line(strokeWidth=2.5).encode(strokeDash=dashes_of_runs(_names(runs)))
    points = base.mark_point(filled=True, size=60).encode(
        tooltip=["run:N", "severity:O", alt.Tooltip("mean(value):Q", format=".4f", title="mean")]
    )
    first = metrics[0]
    spoken = "; ".join(
        f"{run.name}: {of_metric(first, run.scores.result.clean[first].value)} clean, "
        + ", ".join(
            f"{of_metric(first, found[first].value)} at severity {level}"
            for level, found in run.scores.result.severities_cell_average.items()
        )
        for run in runs
    )
    text = f"Line chart of a metric over severity, one line per run. {WORDS[first]} of {spoken}."
    drawn = (lines + points).add_params(*_signals(runs))
    return Figure(
        "severity",
        "By severity",
        f"Mean over the {'shifts' if runs[0].of_rows else 'corruptions'} that are switched on, each of them counting "
        "alike. Severity 0 is clean data.",
        text,
        finished(drawn, text, height=60 + ROW * max(10, len(runs[0].scores.result.cells))),
    )


def heat_figure(runs: Sequence[EvaluatedRun]) -> Figure:
    """Corruption × run, means over severities; of a single run corruption × severity."""
    metrics = SHOWN[runs[0].scores.task]
    single = len(runs) == 1
    rows = []
    for run in runs:
        for name, levels in run.scores.result.cells.items():
            columns = (
                {f"severity {level}": found for level, found in levels.items()}
                if single
                else {run.name: run.scores.result.types[name]}
            )
            rows += [
                {"corruption": name, "column": column} | {metric: found[metric].value for metric in metrics}
                for column, found in columns.items()
            ]
    shown = list(dict.fromkeys(str(row["column"]) for row in rows))
    order = list(dict.fromkeys(str(row["corruption"]) for row in rows))
    lines = {name: wrapped(name, max(8, LETTERS // len(shown))) for name in shown}
    above = alt.Axis(
        orient="top", labelAngle=0, labelLimit=max(40, 230 // len(shown)), labelExpr=in_lines(lines),
        labelPadding=3 + LINE * (max(map(len, lines.values())) - 1),
    )  # fmt: skip
    base = (
        chart(rows)
        .transform_filter(IS_SHOWN)
        .transform_calculate(value=SHOWS_VALUE)
        .transform_joinaggregate(low="min(value)", high="max(value)")
        .transform_calculate(
            light="(datum.value - datum.low) / max(datum.high - datum.low, 1e-9)",
            label="abs(datum.value) >= 100 ? format(datum.value, ',.0f') : format(datum.value, '.3f')",
        )
        .encode(
            x=alt.X("column:N", sort=shown, title=None, axis=above),
            y=alt.Y("corruption:N", scale=alt.Scale(domain=order), title=None, axis=alt.Axis(labelLimit=130)),
        )
    )
    squares = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=alt.Scale(scheme="viridis", zero=False), legend=None),
        tooltip=["corruption:N", "column:N", alt.Tooltip("value:Q", format=".4f")],
    )
    labels = base.mark_text(fontSize=11).encode(
        text="label:N", color=alt.condition("datum.light > 0.5", alt.value("#000000"), alt.value("#ffffff"))
    )
    of, kind = "severities" if single else "runs", "shift" if runs[0].of_rows else "corruption"
    first = metrics[0]
    worst = sorted(
        runs[0].scores.result.types.items(),
        key=lambda pair: pair[1][first].value * (1 if first == "accuracy" else -1),
    )[0]
    text = (
        f"Heat map: {kind}s in rows, {of} in columns, one number in each cell. The worst for {runs[0].name} is "
        f"{worst[0]} with {WORDS[first].lower()} {of_metric(first, worst[1][first].value)}."
    )
    caption = (
        f"Each {kind} at each severity; bright is large."
        if single
        else f"Each {kind}, mean over its severities; bright is large."
    )
    drawn = (squares + labels).add_params(*_signals(runs))
    height = 60 + ROW * len(order) + LINE * max(map(len, lines.values()))
    return Figure("heat", f"By {kind}", caption, text, finished(drawn, text, height=height))


def _signals(runs: Sequence[EvaluatedRun]) -> list[alt.Parameter]:
    return [alt.param(name="metric", value=SHOWN[runs[0].scores.task][0]), alt.param(name="hidden", value=[])]


def _names(runs: Sequence[EvaluatedRun]) -> list[str]:
    return [run.name for run in runs]
