"""Scores by severity and by corruption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forde.experiments.groups import Group
from forde.report.drawing import legend, line, panels, save, severities_of, titles

SCORES = (("accuracy", "accuracy"), ("nll", "NLL"), ("ece", "ECE"))
COLUMNS = 5


def corruptions(groups: Mapping[str, Mapping[str, Group]], folder: Path) -> None:
    """A row for each data set: accuracy, NLL and ECE of every method at each severity, 0 for clean images."""
    figure, axes = panels(len(groups), len(SCORES))
    for row, (data, found) in zip(axes, groups.items(), strict=True):
        levels = severities_of(found)
        for ax, (name, shown) in zip(row, SCORES, strict=True):
            for label, group in found.items():
                names = [f"clean.{name}", *(f"severities.{level}.{name}" for level in levels)]
                line(ax, [0, *levels], [group] * len(names), names, label)
            titles(ax, f"{data}: {shown}", "severity", shown)
    legend(figure, axes)
    save(figure, folder)


def diversity(groups: Mapping[str, Mapping[str, Group]], folder: Path) -> None:
    """A row for each data set: distance of input gradients, epistemic uncertainty and disagreement by severity."""
    figure, axes = panels(len(groups), 3)
    for row, (data, found) in zip(axes, groups.items(), strict=True):
        levels = severities_of(found)
        for label, group in found.items():
            for ax, clean, path in (
                (row[0], "gradient_distance.0", "gradient_distance.{}"),
                (row[1], "clean.epistemic", "severities.{}.epistemic"),
                (row[2], "clean.disagreement", "severities.{}.disagreement"),
            ):
                names = [clean, *(path.format(level) for level in levels)]
                line(ax, [0, *levels], [group] * len(names), names, label)
        titles(row[0], f"{data}: input gradients", "severity", "cosine distance")
        titles(row[1], f"{data}: predictions", "severity", "epistemic uncertainty (nats)")
        titles(row[2], f"{data}: votes", "severity", "disagreement")
    legend(figure, axes)
    save(figure, folder)


def each_corruption(groups: Mapping[str, Mapping[str, Group]], folder: Path) -> None:
    """A panel for each corruption, and one for the average: accuracy by severity."""
    for number, (data, found) in enumerate(groups.items()):
        levels = severities_of(found)
        names = list(dict.fromkeys(
            name for group in found.values() for one in group.results.values() for name in one.content["corruptions"]
        ))  # fmt: skip
        figure, axes = panels(-(-(len(names) + 1) // COLUMNS), COLUMNS)
        flat = [ax for row in axes for ax in row]
        for ax, name in zip(flat, [*names, None], strict=False):
            for label, group in found.items():
                path = f"corruptions.{name}.{{}}.accuracy" if name else "severities.{}.accuracy"
                paths = ["clean.accuracy", *(path.format(level) for level in levels)]
                line(ax, [0, *levels], [group] * len(paths), paths, label)
            titles(ax, (name or f"{data}: average").replace("_", " "), "severity", "accuracy")
        for ax in flat[len(names) + 1 :]:
            ax.remove()
        legend(figure, axes)
        save(figure, folder, "figure" if number == 0 else f"figure-{data}")
