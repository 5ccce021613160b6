"""Quantities: intervals around predictions, how many targets they hold, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import torch

from forde.metrics.regression import mixture_quantile
from forde.report.page.charts.common import chart, dashes_of_runs, finished, of_runs
from forde.report.page.parts import Figure, number, percent
from forde.report.page.runs import EvaluatedRun

ROWS = 120
"""Rows whose intervals are drawn; of more, evenly spread over the predictions."""
LEVEL = 0.95
INSIDE, OUTSIDE = "target inside", "target outside"
LEVELS = [step / 20 for step in range(1, 20)] + [0.99]


def interval_figures(runs: Sequence[EvaluatedRun]) -> list[Figure]:
    """For each run targets and 95 % intervals, rows in the order of their predictions."""
    figures = []
    for place, run in enumerate(runs):
        saved = run.clean_quantities
        order = saved.prediction.mean.argsort()
        chosen = order[torch.linspace(0, len(order) - 1, min(ROWS, len(order))).round().long()]
        means, variances, y = saved.means[:, chosen], saved.variances[:, chosen], saved.y[chosen]
        low, high = (mixture_quantile(means, variances, level) for level in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        inside = (low <= y) & (y <= high)
        rows = [
            {"row": n + 1, "low": float(a), "high": float(b), "mean": float(m), "y": float(t),
             "where": INSIDE if within else OUTSIDE}
            for n, (a, b, m, t, within) in enumerate(zip(low, high, means.mean(0), y, inside, strict=True))
        ]  # fmt: skip
        target = run.scores.data["target"] or "target"
        base = chart(rows).encode(x=alt.X("row:Q", title="Rows in the order of their predictions", axis=_no_ticks()))
        bars = base.mark_rule(color="#0072b2", opacity=0.45, strokeWidth=2).encode(
            y=alt.Y("low:Q", title=str(target), scale=alt.Scale(zero=False)), y2="high:Q"
        )
        means_drawn = base.mark_point(filled=True, size=14, color="#0072b2").encode(y="mean:Q")
        scale = alt.Scale(domain=[INSIDE, OUTSIDE], range=["#009e73", "#d55e00"])
        targets = base.mark_point(filled=True, size=32).encode(
            y="y:Q",
            color=alt.Color("where:N", scale=scale, legend=alt.Legend(title=None, orient="top")),
            shape=alt.Shape("where:N", scale=alt.Scale(domain=[INSIDE, OUTSIDE], range=["circle", "cross"])),
            tooltip=[alt.Tooltip(f"{n}:Q", format=".4") for n in ("y", "mean", "low", "high")],
        )
        held = percent(float(inside.double().mean()))
        text = f"Predictions of {run.name} with 95 % intervals, {len(rows)} rows: {held} of the targets are inside."
        caption = f"{len(rows)} of {len(saved.y):,} rows; bars are 95 % intervals, and {held} of these hold the target."
        figures.append(
            Figure(f"intervals-{place}", run.name, caption, text, finished(bars + means_drawn + targets, text))
        )
    return figures


def _no_ticks() -> alt.Axis:
    return alt.Axis(labels=False, ticks=False, grid=False)


def coverage_figure(runs: Sequence[EvaluatedRun]) -> Figure:
    """Share of targets inside the central interval of each level."""
    rows, spoken = [], []
    for run in runs:
        off = (run.clean_quantities.pit - 0.5).abs()
        shares = {level: float((off <= level / 2).double().mean()) for level in LEVELS}
        rows += [{"run": run.name, "level": level, "held": held} for level, held in shares.items()]
        spoken.append(f"{run.name} holds {percent(shares[LEVEL])}")
    names = [run.name for run in runs]
    share = alt.Scale(domain=[0, 1])
    ideal = (
        chart([{"at": 0}, {"at": 1}])
        .mark_line(strokeDash=[4, 4], color="currentColor", opacity=0.5)
        .encode(x="at:Q", y="at:Q")
    )
    lines = (
        chart(rows)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("level:Q", title="Level of the interval", scale=share, axis=alt.Axis(format="%", tickCount=6)),
            y=alt.Y("held:Q", title="Targets inside", scale=share, axis=alt.Axis(format="%", tickCount=6)),
            color=of_runs(names),
            strokeDash=dashes_of_runs(names),
            tooltip=["run:N", alt.Tooltip("level:Q", format=".0%"), alt.Tooltip("held:Q", format=".1%")],
        )
    )
    held = "; ".join(spoken)
    text = f"Coverage of central intervals over their level: in 95 % intervals {held}."
    caption = "On the dashed line intervals hold what they promise; below it they are too narrow. At 95 %: " + held
    return Figure("coverage", "Coverage", caption + ".", text, finished(ideal + lines, text))


def residual_figures(runs: Sequence[EvaluatedRun]) -> list[Figure]:
    """For each run target − prediction over the prediction."""
    figures = []
    for place, run in enumerate(runs):
        saved = run.clean_quantities
        mean = saved.prediction.mean
        residual = saved.y - mean
        chosen = torch.linspace(0, len(mean) - 1, min(1000, len(mean))).round().long()
        rows = [{"mean": float(m), "residual": float(r)} for m, r in zip(mean[chosen], residual[chosen], strict=True)]
        points = (
            chart(rows)
            .mark_point(filled=True, size=22, opacity=0.6, color="#0072b2")
            .encode(
                x=alt.X("mean:Q", title="Prediction", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6)),
                y=alt.Y("residual:Q", title="Target − prediction"),
                tooltip=[alt.Tooltip(f"{n}:Q", format=".4") for n in ("mean", "residual")],
            )
        )
        zero = chart([{"at": 0}]).mark_rule(strokeDash=[4, 4], color="currentColor", opacity=0.5).encode(y="at:Q")
        bias, spread = number(float(residual.mean())), number(float(residual.std()))
        text = f"Residuals of {run.name} over its predictions: mean {bias}, standard deviation {spread}."
        caption = f"Mean {bias}, standard deviation {spread}. A slope or a funnel is structure that the run missed."
        figures.append(
            Figure(f"residuals-{place}", f"Residuals of {run.name}", caption, text, finished(zero + points, text))
        )
    return figures
