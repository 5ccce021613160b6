"""The trials of a study: what each costs on clean data, and what it brings under perturbations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forde.report.drawing import save, titles

GREY, BLUE, RED, LIGHT = "#555555", "#1f77b4", "#d62728", "#bbbbbb"


def draw_frontier(found: dict[str, Any], folder: Path) -> None:
    """Clean NLL against NLL under perturbations, both − the deep ensemble's, with standard errors.

    Args:
        found: `Tuning.to_dict()`, or what `tuning.json` holds.
        folder: for frontier.png and frontier.svg.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 4.2), dpi=150, layout="constrained")
    ax = figure.subplots()
    ax.grid(alpha=0.2, linewidth=0.5)
    ax.tick_params(labelsize=8)
    budget, trials = found["clean_budget"], {trial["number"]: trial for trial in found["trials"]}
    points = {number: _point(trial) for number, trial in trials.items()}
    edge = sorted(points[number] for number in found["frontier"])
    ax.plot(*zip(*edge, strict=True), color=BLUE, linewidth=1, alpha=0.6, label="frontier", zorder=1)
    for number, trial in trials.items():
        chosen = number == found["chosen"]
        colour = RED if chosen else GREY if not trial["values"] else BLUE if trial["allowed"] else LIGHT
        ax.errorbar(
            *points[number], xerr=trial["clean_difference"]["error"], yerr=trial["corrupted_difference"]["error"],
            fmt="o" if trial["values"] else "s", color=colour, markersize=6 if chosen else 4, elinewidth=0.7,
            label=f"chosen: {_words(trial)}" if chosen else None, zorder=3 if chosen else 2,
        )  # fmt: skip
    ax.axvline(budget, color=GREY, linewidth=0.8, linestyle="--", label=f"allowed: {budget:+g}")
    if found["chosen"] != (baseline := next(n for n, trial in trials.items() if not trial["values"])):
        ax.annotate("deep ensemble", points[baseline], textcoords="offset points", xytext=(6, -12), fontsize=8)
    titles(ax, "", "clean NLL − deep ensemble's", "NLL under perturbations − deep ensemble's")
    figure.legend(fontsize=8, loc="outside lower center", ncols=3, frameon=False)
    save(figure, folder, "frontier")


def _point(trial: dict[str, Any]) -> tuple[float, float]:
    return trial["clean_difference"]["value"], trial["corrupted_difference"]["value"]


def _words(trial: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in trial["values"].items()) or "deep ensemble"
