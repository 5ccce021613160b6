"""What the page is made of: figures, tables and the words for numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WORDS = {
    "accuracy": "Accuracy", "nll": "NLL", "brier": "Brier score", "ece": "ECE", "epistemic": "Epistemic",
    "disagreement": "Disagreement", "confidence": "Confidence", "rmse": "RMSE", "crps": "CRPS",
    "epistemic_std": "Epistemic σ", "aleatoric_std": "Aleatoric σ", "total_std": "Total σ",
    "coverage_50": "In 50 %", "coverage_80": "In 80 %", "coverage_90": "In 90 %", "coverage_95": "In 95 %",
}  # fmt: skip
"""Headings of metrics."""
SHOWN = {
    "classification": ("accuracy", "nll", "ece", "brier", "epistemic", "disagreement"),
    "regression": ("rmse", "nll", "crps", "coverage_50", "coverage_95", "epistemic_std", "total_std"),
}
BETTER = {"accuracy": 1, "nll": -1, "ece": -1, "brier": -1, "rmse": -1, "crps": -1}
"""1 where larger is better, −1 where smaller is; others are neither."""


@dataclass(frozen=True)
class Figure:
    """A Vega-Lite chart with its words."""

    id: str
    title: str
    caption: str
    """What there is to see, for everybody."""
    description: str
    """The same for those who cannot see it: kind of chart, axes, and its main numbers."""
    spec: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is read, and what it is sorted by."""

    text: str
    order: float | str
    kind: str = ""
    """`best`, `number`, or nothing."""
    note: str = ""
    """A second, smaller text, such as a standard error."""


@dataclass(frozen=True)
class Table:
    """A table that sorts."""

    id: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    toggled: Sequence[str] = field(default=())
    """The corruption of each row, where rows come and go with it."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and no exponent where it can be read without.

    >>> number(0.98765), number(1234.5), number(0.000012), number(1.2e-09), number(None), number(0.0)
    ('0.988', '1,234', '0.000012', '1.2e-09', '–', '0')
    >>> number(-0.0148)
    '−0.0148'
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value <= 0:
        return f"−{number(-value, digits)}" if value else "0"
    if value >= 1000:
        return f"{value:,.0f}"
    if value < 1e-6:
        return f"{value:.{digits - 1}g}"
    shown = digits if value >= 1e-4 else digits - 1
    return f"{value:.{max(0, shown - 1 - math.floor(math.log10(value)))}f}"


def percent(value: float, digits: int = 1) -> str:
    """A share in percent.

    >>> percent(0.98765)
    '98.8 %'
    """
    return f"{100 * value:.{digits}f} %"


def signed(value: float, digits: int = 2) -> str:
    """A difference with its sign, the true minus included.

    >>> signed(-0.0123), signed(0.5)
    ('−0.012', '+0.50')
    """
    return ("+" if value >= 0 else "−") + number(abs(value), digits)


def of_metric(name: str, value: float) -> str:
    """A metric as it is read: shares in percent, anything else as a number.

    >>> of_metric("accuracy", 0.9), of_metric("nll", 0.1234)
    ('90.0 %', '0.123')
    """
    return percent(value) if is_share(name) else number(value)


def error_of(name: str, error: float) -> str:
    """A standard error behind its metric, with two digits.

    >>> error_of("accuracy", 0.0123), error_of("nll", 0.0123)
    ('± 1.2', '± 0.012')
    """
    return f"± {100 * error:.1f}" if is_share(name) else f"± {number(error, 2)}"


def is_share(name: str) -> bool:
    """Whether a metric is read in percent."""
    return name in ("accuracy", "disagreement", "confidence") or name.startswith("coverage")


def metric_cell(name: str, value: float, error: float, *, best: bool = False) -> Cell:
    """A metric with its standard error."""
    return Cell(of_metric(name, value), value, "best" if best else "number", error_of(name, error))


def text_cell(text: str) -> Cell:
    """A cell of words."""
    return Cell(text, text.lower())


def number_cell(value: float | None, text: str | None = None) -> Cell:
    """A cell of one number."""
    return Cell(number(value) if text is None else text, -math.inf if value is None else value, "number")


def best_of(name: str, values: Sequence[float]) -> float | None:
    """The best value of several, None where better has no meaning or no other value looks different from it.

    >>> best_of("accuracy", [0.5, 0.75]), best_of("nll", [0.50001, 0.50002]), best_of("epistemic", [0.5, 0.75])
    (0.75, None, None)
    """
    if name not in BETTER or not values:
        return None
    best = max(values) if BETTER[name] > 0 else min(values)
    alike = [of_metric(name, value) for value in values].count(of_metric(name, best))
    return best if alike == 1 < len(values) else None
