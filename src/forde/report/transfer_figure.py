"""The transfer-learning figure: bars for every method, in and out of distribution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forde.experiments.groups import Group
from forde.report.drawing import colour_of, panels, save, titles

SCORES = (("nll", "NLL"), ("ece", "ECE"), ("accuracy", "accuracy"))


def transfer(groups: Mapping[str, Mapping[str, Group]], folder: Path) -> None:
    """A row for each data set: NLL, ECE, accuracy on test, corrupted and shifted features; uncertainty on foreign."""
    figure, axes = panels(len(groups), 4)
    figure.set_size_inches(16, 3.2 * len(groups) + 0.6)
    for row, (data, found) in zip(axes, groups.items(), strict=True):
        for ax, (name, shown) in zip(row, SCORES, strict=False):
            places = {"test": f"clean.{name}", "corrupted": f"pooled.{name}"}
            places |= {where: f"shifted.{where}.{name}" for where in _keys(found, "shifted")}
            _bars(ax, found, places)
            titles(ax, f"{data.partition('@')[0]}: {shown}", "", shown)
        _bars(row[3], found, {where: f"foreign.{where}.epistemic" for where in _keys(found, "foreign")})
        titles(row[3], f"{data.partition('@')[0]}: foreign data", "", "epistemic uncertainty (nats)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    save(figure, folder)


def _keys(groups: Mapping[str, Group], part: str) -> list[str]:
    return list(dict.fromkeys(
        key for group in groups.values() for one in group.results.values() for key in one.content.get(part, {})
    ))  # fmt: skip


def _bars(ax: object, groups: Mapping[str, Group], places: Mapping[str, str]) -> None:
    """A cluster of bars for each place, one for each method, with a whisker of one standard deviation."""
    from matplotlib.axes import Axes

    assert isinstance(ax, Axes)
    width = 0.8 / max(1, len(groups))
    lows: list[float] = []
    for number, (label, group) in enumerate(groups.items()):
        spreads = [group.spread(path) for path in places.values()]
        there = [(index, found) for index, found in enumerate(spreads) if found is not None]
        x = [index + (number - (len(groups) - 1) / 2) * width for index, _ in there]
        heights = [found.mean for _, found in there]
        lows += heights
        ax.bar(x, heights, width, yerr=[found.std or 0.0 for _, found in there], color=colour_of(group), label=label,
               error_kw={"linewidth": 0.6})  # fmt: skip
    ax.set_xticks(range(len(places)), list(places), fontsize=7)
    if lows and max(lows) > 0 and min(lows) / max(lows) > 0.5:
        ax.set_ylim(bottom=min(lows) - 0.3 * (max(lows) - min(lows) or 0.1 * max(lows)))
