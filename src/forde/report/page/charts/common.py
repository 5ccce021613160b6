"""What charts have in common: colours of runs, size, and that text and lines take the page's colour."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07800", "#7f7f7f", "#56a0d3", "#8c564b")
"""Told apart by most colour-blind readers, and seen on white as well as on black."""
HEIGHT = 240
ROW = 24
"""Of a chart with words at its left."""
LINE = 14
"""Of a label with several lines."""
BESIDE = 14
"""Letters up to which two names of runs fit beside each other on paper and on a phone."""


def of_runs(names: Sequence[str], **options: Any) -> alt.Color:
    """One colour for each run, the same in all charts."""
    domain = list(names)
    scale = alt.Scale(domain=domain, range=[COLOURS[place % len(COLOURS)] for place in range(len(domain))])
    return alt.Color("run:N", scale=scale, legend=_legend(domain), **options)


def dashes_of_runs(names: Sequence[str]) -> alt.StrokeDash:
    """A dash for each run, so that lines are told apart without their colours."""
    patterns = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]
    scale = alt.Scale(domain=list(names), range=[patterns[place % 4] for place in range(len(names))])
    return alt.StrokeDash("run:N", scale=scale, legend=_legend(names))


def _legend(names: Sequence[str]) -> alt.Legend | None:
    """One for colour and dash together, where there is more than one run."""
    if len(names) < 2:
        return None
    columns = 2 if max(map(len, names)) <= BESIDE else 1
    return alt.Legend(
        title=None, orient="top", columns=columns, labelLimit=220, symbolType="stroke", symbolStrokeWidth=2.5
    )


def in_lines(labels: Mapping[str, Sequence[str]]) -> str:
    """An expression that writes labels in several lines, for `labelExpr`: text → its lines.

    >>> in_lines({"a-b": ["a-", "b"]})
    '{"a-b": ["a-", "b"]}[datum.label]'
    """
    return f"{json.dumps({label: list(lines) for label, lines in labels.items()})}[datum.label]"


def wrapped(label: str, width: int) -> list[str]:
    """A label in lines of at most `width` letters, broken at spaces and hyphens where there are any.

    >>> wrapped("houses-deep-ensemble", 14)
    ['houses-deep-', 'ensemble']
    """
    return textwrap.wrap(label, width, break_long_words=False) or [label]


def chart(rows: Sequence[dict[str, Any]]) -> alt.Chart:
    """A chart of these rows, as wide as its place on the page."""
    return alt.Chart(alt.Data(values=list(rows)))


def finished(drawn: Any, description: str, *, height: int = HEIGHT) -> dict[str, Any]:
    """The specification of a chart, with its text alternative."""
    # Room for labels is taken from the chart's own size, so that it never grows out of its place.
    autosize = alt.AutoSizeParams(type="fit", contains="padding")
    sized = drawn.properties(width="container", height=height, autosize=autosize, description=description)
    spec: dict[str, Any] = sized.to_dict()
    spec.pop("$schema", None)  # the bundle in the page knows one version of Vega-Lite only
    return spec
