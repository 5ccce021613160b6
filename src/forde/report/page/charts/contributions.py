"""Why members disagree about a row: what each column contributes to each member's output."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from forde.report.page.charts.common import COLOURS, LINE, ROW, chart, finished, in_lines
from forde.report.page.parts import Figure, number

COLUMNS = 6


def contribution_figure(
    id_: str, title: str, features: Sequence[str], row: np.ndarray, contributions: np.ndarray
) -> Figure:
    """A dot for each member and column, the columns on which members differ most: `[D]` values, `[M, D]`."""
    spread = contributions.std(0)
    chosen = np.argsort(-spread, kind="stable")[:COLUMNS]
    names = [f"{features[d]} = {number(float(row[d]))}" for d in chosen]
    # The value stands on a line of its own, so that a long name does not push it out of the picture.
    lines = {name: [str(features[d]), f"= {number(float(row[d]))}"] for name, d in zip(names, chosen, strict=True)}
    axis = alt.Axis(labelLimit=150, grid=True, labelExpr=in_lines(lines), labelOffset=-LINE / 2)
    members = [f"member {m + 1}" for m in range(len(contributions))]
    rows = [
        {"column": name, "contribution": float(contributions[m, d]), "member": members[m]}
        for name, d in zip(names, chosen, strict=True)
        for m in range(len(contributions))
    ]
    scale = alt.Scale(domain=members, range=[COLOURS[place % len(COLOURS)] for place in range(len(members))])
    points = (
        chart(rows)
        .mark_point(filled=True, size=70, opacity=0.85)
        .encode(
            x=alt.X("contribution:Q", title="Contribution to the output", axis=alt.Axis(tickCount=6)),
            y=alt.Y("column:N", sort=names, title=None, axis=axis),
            color=alt.Color("member:N", scale=scale, legend=None),
            tooltip=["member:N", "column:N", alt.Tooltip("contribution:Q", format=".3f")],
        )
    )
    zero = chart([{"at": 0}]).mark_rule(strokeDash=[4, 4], color="currentColor", opacity=0.5).encode(x="at:Q")
    text = f"Contributions of columns to each member's output for {title}; members differ most on {names[0]}."
    return Figure(id_, title, "", text, finished(zero + points, text, height=60 + (ROW + LINE) * len(names)))
