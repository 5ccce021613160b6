"""How training went: what each epoch's record holds, run by run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt

from forde.report.page.charts.common import chart, dashes_of_runs, finished, of_runs
from forde.report.page.parts import Figure, number
from forde.report.page.runs import EvaluatedRun

CURVES = {
    "loss": ("Training loss", "Mean over members and batches."),
    "validation_nll": ("Validation NLL", "Of the ensemble on data that it was not trained on."),
    "validation_accuracy": ("Validation accuracy", "Of the ensemble on data that it was not trained on."),
    "validation_ece": ("Validation ECE", "Calibration error of the ensemble on validation data."),
    "validation_rmse": ("Validation RMSE", "Of the ensemble on data that it was not trained on."),
    "validation_crps": ("Validation CRPS", "Of the ensemble on data that it was not trained on."),
    "validation_loss": ("Validation loss", "Of the ensemble on data that it was not trained on."),
    "repulsion": ("Repulsion", "What it adds to the loss; it falls as members move apart."),
    "bandwidth": ("Bandwidth", "The scale at which the kernel compares members; it follows their distances."),
    "gradient_cosine": ("Gradient cosine", "Mean cosine of two members' input gradients; smaller is more diverse."),
    "disagreement": ("Disagreement", "Of pairs of members on a probe batch of the training data."),
}
"""Quantities of a record that are drawn, where some run has them."""
POINTS = 250
"""Epochs drawn of a run; of more every n-th one, and the last."""


def history_figures(runs: Sequence[EvaluatedRun]) -> list[Figure]:
    """One chart for each quantity that some run recorded."""
    figures = []
    for key, (title, caption) in CURVES.items():
        rows = [
            {"run": run.name, "epoch": int(record["epoch"]) + 1, "value": record[key]}
            for run in runs
            for record in _thinned(run.records)
            if math.isfinite(record.get(key, math.nan))
        ]
        if rows and len({row["value"] for row in rows}) > 1:
            figures.append(_figure(runs, key, title, caption, rows))
    return figures


def _thinned(records: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    step = max(1, math.ceil(len(records) / POINTS))
    return [record for place, record in enumerate(records) if place % step == 0 or place == len(records) - 1]


def _figure(
    runs: Sequence[EvaluatedRun], key: str, title: str, caption: str, rows: Sequence[dict[str, object]]
) -> Figure:
    names = [run.name for run in runs]
    drawn = (
        chart(rows)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X(
                "epoch:Q",
                title="Epoch",
                scale=alt.Scale(zero=False, nice=False),
                axis=alt.Axis(tickMinStep=1, tickCount=6, format="d"),
            ),
            y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4)),
            color=of_runs(names),
            strokeDash=dashes_of_runs(names),
            tooltip=["run:N", "epoch:Q", alt.Tooltip("value:Q", format=".4f")],
        )
    )
    ends = "; ".join(
        f"{name} goes from {number(float(own[0]))} to {number(float(own[-1]))}"  # type: ignore[arg-type]
        for name in names
        if (own := [row["value"] for row in rows if row["run"] == name])
    )
    text = f"{title} over epochs: {ends}."
    return Figure(f"history-{key}", title, caption, text, finished(drawn, text, height=160))
