"""What figures of experiments have in common: colours, panels, bands over seeds, files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forde.durable import write_whole
from forde.experiments.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (3.1, 2.7)
"""Width and height of a panel in inches."""
DPI = 150
SMALL, LARGE = 9, 10
"""Sizes of letters in points: a page shows three panels beside each other, at about a pixel for a point."""
COLOURS = {
    "deep-ensemble": "#555555", "forde": "#d62728", "forde-pca": "#1f77b4", "forde-identity": "#17becf",
    "forde-tuned": "#9467bd", "weight-rde": "#8c564b", "function-rde": "#bcbd22", "feature-rde": "#2ca02c",
    "lit": "#e377c2", "swag": "#ff7f0e", "node-bnn": "#7f7f7f",
}  # fmt: skip
DASHED = {"deep-ensemble"}


def panels(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.5), dpi=DPI, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.tick_params(labelsize=SMALL)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.2, linewidth=0.5)
    return figure, [list(row) for row in axes]


def line(ax: Axes, x: Sequence[float], groups: Sequence[Group], names: Sequence[str], label: str) -> None:
    """Means over seeds with a band of one standard deviation, one group and number for each x."""
    points = [(at, found) for at, group, name in zip(x, groups, names, strict=True) if (found := group.spread(name))]
    if not points:
        return
    method = groups[0].cell.method
    colour, style = colour_of(groups[0]), "--" if method in DASHED or groups[0].cell.prior == "empcov" else "-"
    at, mean = [where for where, _ in points], [found.mean for _, found in points]
    ax.plot(at, mean, style, color=colour, label=label, marker="o", markersize=3, linewidth=1.6)
    low = [found.mean - (found.std or 0.0) for _, found in points]
    high = [found.mean + (found.std or 0.0) for _, found in points]
    ax.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def colour_of(group: Group) -> str:
    """The colour of a method in all figures."""
    return COLOURS.get(group.cell.method, "#000000")


def titles(ax: Axes, title: str, x: str, y: str) -> None:
    """Title and names of the axes."""
    ax.set_title(title, fontsize=LARGE)
    ax.set_xlabel(x, fontsize=SMALL)
    ax.set_ylabel(y, fontsize=SMALL)


def legend(figure: Figure, axes: Sequence[Sequence[Axes]], columns: int = 4) -> None:
    """One legend for all panels, in so many columns as are not wider than the figure."""
    found: dict[str, Any] = {}
    for ax in (ax for row in axes for ax in row):
        handles, labels = ax.get_legend_handles_labels()
        found |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in found}
    for number in range(min(columns, len(found)), 0, -1):
        made = figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=number, fontsize=LARGE, frameon=False
        )
        if number == 1 or made.get_window_extent().width <= figure.bbox.width:
            return
        made.remove()


def save(figure: Figure, folder: Path, name: str = "figure") -> None:
    """As PNG and SVG."""
    for kind in ("png", "svg"):
        write_whole(folder / f"{name}.{kind}", picture(figure, kind))


def picture(figure: Figure, kind: str) -> bytes:
    """A file's content, the same bytes for the same figure.

    Args:
        kind: what matplotlib can write, as in "png", "svg" or "pdf".
    """
    from matplotlib import rc_context

    stream, varies = io.BytesIO(), {"png": "Software", "svg": "Date", "pdf": "CreationDate"}.get(kind)
    with rc_context({"svg.hashsalt": "forde"}):
        figure.savefig(stream, format=kind, metadata={varies: None} if varies else None)
    return stream.getvalue()


def severities_of(groups: Mapping[str, Group]) -> list[int]:
    """Those that some result has."""
    return sorted(
        {int(level) for each in groups.values() for one in each.results.values()
         for level in one.content.get("severities", {})}
    )  # fmt: skip
