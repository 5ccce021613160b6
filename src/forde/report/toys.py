"""Figures 2 and 3 of the paper from the results of `forde.experiments.toys`; needs matplotlib (`forde[plot]`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forde.data import toys
from forde.durable import write_whole
from forde.experiments.toys import CLASSIFICATION_RANGE, REGRESSION_RANGE, ClassificationResult, RegressionResult
from forde.report.drawing import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "deep-ensemble": "Deep ensemble",
    "weight-rde": "Weight-RDE",
    "function-rde": "Function-RDE",
    "feature-rde": "Feature-RDE",
    "lit": "LIT",
    "forde-identity": "FoRDE-Identity",
    "forde-pca": "FoRDE-PCA",
}
COLUMNS = 4
PANEL = 2.6
"""Width of a panel in inches."""
DPI = 160
BAND = "#3b6fb6"
POINTS = "#222222"
CLASS_COLOURS = ("#e6550d", "#31a354", "#756bb1", "#d62c7a", "#1f9ed1")


def draw_figure_2(results: Sequence[RegressionResult], path: str | Path) -> Path:
    """1D regression: one panel per method with mean, ±1, ±2 and ±3 standard deviations, and the data; all on one scale.

    >>> import tempfile
    >>> from dataclasses import replace
    >>> from forde.experiments.toys import REGRESSION, run_regression
    >>> result = run_regression("deep-ensemble", settings=replace(REGRESSION, epochs=2))
    >>> draw_figure_2([result], Path(tempfile.mkdtemp()) / "figure2.png").name
    'figure2.png'
    """
    figure, axes = _panels(len(results), ratio=0.8)
    x, y = (values.numpy() for values in toys.regression_1d()[:2])
    limits = _common_limits(results, float(y.min()), float(y.max()))
    for ax, result in zip(axes, results, strict=True):
        grid, mean, std = result.x.numpy(), result.mean.numpy(), result.std.numpy()
        for width in (3, 2, 1):
            label = "±1, ±2, ±3 std" if width == 1 else None
            ax.fill_between(grid, mean - width * std, mean + width * std, color=BAND, alpha=0.22, lw=0, label=label)
        ax.plot(grid, mean, color=BAND, linewidth=1.4, label="mean of 16 members")
        ax.scatter(x, y, s=1.5, color=POINTS, linewidths=0, zorder=3, label="training data")
        ax.set_title(
            f"{TITLES.get(result.method, result.method)}\nstd outside the data {result.outside:.3f}", fontsize=8
        )
        ax.set_xlim(-REGRESSION_RANGE, REGRESSION_RANGE)
        ax.set_ylim(*limits)
        ax.set_xlabel("x", fontsize=8)
        ax.grid(alpha=0.2, linewidth=0.5)
    axes[0].set_ylabel("y", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False, markerscale=3)
    return _save(figure, path)


def draw_figure_3(results: Sequence[ClassificationResult], path: str | Path) -> Path:
    """2D classification: one map of the entropy of p̄ per method with the training data, on one colour scale 0..ln 5.

    >>> import tempfile
    >>> from dataclasses import replace
    >>> from forde.experiments.toys import CLASSIFICATION, run_classification
    >>> result = run_classification("deep-ensemble", settings=replace(CLASSIFICATION, epochs=2, grid=21))
    >>> draw_figure_3([result], Path(tempfile.mkdtemp()) / "figure3.png").name
    'figure3.png'
    """
    figure, axes = _panels(len(results), ratio=1.05)
    data = toys.classification_2d()
    x, y = data.x.numpy(), data.y.tolist()
    side = CLASSIFICATION_RANGE
    image: Any = None
    for ax, result in zip(axes, results, strict=True):
        image = ax.imshow(
            result.entropy.numpy(),
            origin="lower",
            extent=(-side, side, -side, side),
            vmin=0,
            vmax=math.log(toys.N_CLASSES),
            cmap="cividis",
            interpolation="bilinear",
        )
        ax.scatter(x[:, 0], x[:, 1], s=5, c=[CLASS_COLOURS[label] for label in y], edgecolors="white", linewidths=0.25)
        ax.set_title(
            f"{TITLES.get(result.method, result.method)}\n"
            f"far {result.far:.2f}, lowest direction {float(result.ring.min()):.2f}",
            fontsize=8,
        )
        ax.set_xticks([-20, -10, 0, 10, 20])
        ax.set_yticks([-20, -10, 0, 10, 20])
    bar = figure.colorbar(image, ax=list(axes), location="bottom", shrink=0.4, aspect=40, pad=0.03)
    bar.set_label("entropy of the averaged prediction (nats)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return _save(figure, path)


def _panels(count: int, ratio: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` equal panels in rows of four, the unused ones removed."""
    from matplotlib.figure import Figure

    columns = min(count, COLUMNS)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(columns, 2) * PANEL, rows * PANEL * ratio + 0.7), dpi=DPI, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    for ax in axes[:count]:
        ax.tick_params(labelsize=7)
    return figure, axes[:count]


def _common_limits(results: Sequence[RegressionResult], lowest: float, highest: float) -> tuple[float, float]:
    """One y-axis for all panels: the widest band, but no more than the data's range beyond the data on either side."""
    reach = highest - lowest
    low = min(float((result.mean - 3 * result.std).min()) for result in results)
    high = max(float((result.mean + 3 * result.std).max()) for result in results)
    return max(low, lowest - reach), min(high, highest + reach)


def _save(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, picture(figure, path.suffix.removeprefix(".") or "png"))
    return path
