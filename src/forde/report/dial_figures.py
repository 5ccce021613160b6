"""Scores along a dial: members, lengthscales, strength, width."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from forde.experiments import fig_alpha
from forde.experiments import frontier as frontier_of
from forde.experiments.groups import Group, Spread, spread
from forde.experiments.width import width_of
from forde.report.drawing import SMALL, colour_of, legend, line, panels, save, titles

Groups = Mapping[str, Mapping[str, Group]]
REFERENCE = "deep-ensemble"
FAMILIES = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf")


def sizes(groups: Groups, folder: Path) -> None:
    """A row for each data set: NLL against the number of members, clean and corrupted."""
    figure, axes = panels(len(groups), 2)
    for row, (data, found) in zip(axes, groups.items(), strict=True):
        by_method = _by_method(found)
        for ax, name, shown in zip(row, ("nll", "cNLL"), ("clean", "corrupted"), strict=True):
            for method, own in by_method.items():
                ordered = sorted(own, key=lambda group: group.cell.members)
                line(ax, [group.cell.members for group in ordered], ordered, [name] * len(ordered), method)
            titles(ax, f"{data}: {shown}", "members", "NLL")
    legend(figure, axes)
    save(figure, folder)


def alpha(groups: Groups, folder: Path) -> None:
    """A row for each data set: scores from identity (0) to PCA (1); the deep ensemble as a dotted line."""
    figure, axes = panels(len(groups), 3)
    for row, (data, found) in zip(axes, groups.items(), strict=True):
        forde = sorted((g for g in found.values() if g.cell.method != "deep-ensemble"),
                       key=lambda group: fig_alpha.alpha_of(group.cell))  # fmt: skip
        for ax, name, shown in zip(row, ("accuracy", "cA", "cNLL"), ("accuracy", "cA", "cNLL"), strict=True):
            x = [fig_alpha.alpha_of(group.cell) for group in forde]
            if forde:
                line(ax, x, forde, [name] * len(forde), "FoRDE")
            reference = found["deep-ensemble"].spread(name) if "deep-ensemble" in found else None
            if reference is not None:
                ax.axhline(reference.mean, color="#ff7f0e", linestyle=":", label="deep ensemble")
            titles(ax, f"{data}: {shown}", "α", shown)
    legend(figure, axes)
    save(figure, folder)


def frontier(groups: Groups, folder: Path) -> None:
    """Clean against corrupted NLL, in differences from the deep ensemble of the same seed.

    A line for each scalar and part of the batch, a point for each other method.
    """
    figure, axes = panels(1, 1)
    figure.set_size_inches(7.0, 5.5)
    ax = axes[0][0]
    for found in groups.values():
        families: dict[str, list[Group]] = defaultdict(list)
        for label, group in found.items():
            families[frontier_of.family(group.cell) or label].append(group)
        lines = [name for name, own in families.items() if frontier_of.family(own[0].cell)]
        for name, own in families.items():
            ordered = sorted(own, key=lambda group: frontier_of.strength_of(group.cell))
            there = [
                (group, x, y)
                for group in ordered
                if (x := difference(group, found, "nll")) and (y := difference(group, found, "cNLL"))
            ]
            colour = FAMILIES[lines.index(name) % len(FAMILIES)] if name in lines else colour_of(own[0])
            ax.errorbar(
                [x.mean for _, x, _ in there], [y.mean for _, _, y in there],
                xerr=[x.error or 0.0 for _, x, _ in there], yerr=[y.error or 0.0 for _, _, y in there],
                fmt="o-" if name in lines else "s", color=colour, markersize=4, linewidth=1, label=name,
            )  # fmt: skip
            for group, x, y in there if name in lines else ():
                text = f"{frontier_of.strength_of(group.cell):g}"
                ax.annotate(text, (x.mean, y.mean), (3, 3), textcoords="offset points", fontsize=SMALL)
    ax.axhline(0.0, color="#999999", linewidth=0.6)
    ax.axvline(0.0, color="#999999", linewidth=0.6)
    title = "numbers: times the published repulsion; bars: standard errors over seeds"
    titles(ax, title, "clean NLL − deep ensemble's", "corrupted NLL − deep ensemble's")
    legend(figure, axes, columns=3)
    save(figure, folder)


def difference(group: Group, groups: Mapping[str, Group], name: str) -> Spread | None:
    """A number's difference from the deep ensemble's, over the seeds that both have."""
    own, theirs = group.values(name), groups[REFERENCE].values(name) if REFERENCE in groups else {}
    return spread(own[seed] - theirs[seed] for seed in own if seed in theirs)


def width(groups: Groups, folder: Path) -> None:
    """A row for each data set: disagreement clean and corrupted, and cNLL, as networks widen."""
    figure, axes = panels(len(groups), 3)
    names = (("clean.disagreement", "disagreement, clean"), ("pooled.disagreement", "disagreement, corrupted"),
             ("cNLL", "cNLL"))  # fmt: skip
    for row, (data, found) in zip(axes, groups.items(), strict=True):
        for ax, (name, shown) in zip(row, names, strict=True):
            for method, own in _by_method(found).items():
                ordered = sorted(own, key=lambda group: width_of(group.cell))
                x = [math.log2(width_of(group.cell)) for group in ordered]
                line(ax, x, ordered, [name] * len(ordered), method)
                ax.set_xticks(x, [str(width_of(group.cell)) for group in ordered])
            titles(ax, f"{data}: {shown}", "width", shown)
    legend(figure, axes)
    save(figure, folder)


def _by_method(groups: Mapping[str, Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = defaultdict(list)
    for group in groups.values():
        found[group.cell.method].append(group)
    return found
