"""What stands on the page, section by section: only what the runs' task and evaluation have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forde.evaluation.robustness.comparison import Comparison
from forde.report.page.charts.calibration import reliability_figures
from forde.report.page.charts.corruption import heat_figure, severity_figure
from forde.report.page.charts.quantities import coverage_figure, interval_figures, residual_figures
from forde.report.page.charts.training import history_figures
from forde.report.page.charts.uncertainty import histogram_figures, risk_figures
from forde.report.page.commands import reproducing_commands
from forde.report.page.parts import SHOWN, WORDS, Figure
from forde.report.page.pictures import disputed_inputs
from forde.report.page.runs import EvaluatedRun
from forde.report.page.settings import settings_table
from forde.report.page.tables import (
    corruption_table,
    cost_table,
    difference_table,
    foreign_table,
    metric_table,
)
from forde.report.page.verdict import verdict


def contents(runs: Sequence[EvaluatedRun], comparisons: Mapping[str, Comparison]) -> dict[str, Any]:
    """Values for the template; an empty one leaves its part of the page out."""
    classes = runs[0].scores.task == "classification"
    corrupted = all(run.corrupted_keys for run in runs)
    metrics = SHOWN[runs[0].scores.task]
    found: dict[str, Any] = {
        "verdict": verdict(runs, comparisons),
        "classes": classes,
        "of_rows": runs[0].of_rows,
        "metrics": metric_table(runs),
        "differences": difference_table(runs, comparisons),
        "metric_names": {metric: WORDS[metric] for metric in metrics} if corrupted else {},
        "corruptions": list(dict.fromkeys(name for run in runs for name in run.scores.result.cells)),
        "corruption_figures": [severity_figure(runs), heat_figure(runs)] if corrupted else [],
        "corruption_tables": {metric: corruption_table(runs, metric) for metric in metrics} if corrupted else {},
        "reliability": reliability_figures(runs) if classes else [],
        "histograms": histogram_figures(runs),
        "risks": risk_figures(runs),
        "foreign": foreign_table(runs),
        "intervals": [] if classes else interval_figures(runs),
        "coverage": [] if classes else [coverage_figure(runs)],
        "residuals": [] if classes else residual_figures(runs),
        "history": history_figures(runs),
        "disputed": {run.name: inputs for place, run in enumerate(runs) if (inputs := disputed_inputs(run, place))},
        "cost": cost_table(runs),
        "settings": settings_table(runs),
        "commands": {run.name: reproducing_commands(run) for run in runs},
    }
    return {**found, "specs": {figure.id: figure.spec for figure in _figures(found)}}


def _figures(found: Mapping[str, Any]) -> list[Figure]:
    lists = (
        "corruption_figures",
        "reliability",
        "histograms",
        "risks",
        "intervals",
        "coverage",
        "residuals",
        "history",
    )
    figures = [figure for name in lists for figure in found[name]]
    disputed = [each.figure for inputs in found["disputed"].values() for each in inputs if each.figure is not None]
    return [*figures, *disputed]
