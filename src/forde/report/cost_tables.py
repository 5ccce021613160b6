"""What settings cost and bring, in those of a deep ensemble."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from forde.experiments.groups import Group, lower_is_better, spread
from forde.report.score_tables import TITLES, published, shown

REFERENCE = "deep-ensemble"
GAINS = ("accuracy", "nll", "cA", "cNLL", "cECE")


def cost_rows(groups: Mapping[str, Group]) -> dict[str, dict[str, float | None]]:
    """For each setting: milliseconds of a step, in those of a deep ensemble, GiB, and differences of scores.

    Differences are ours − the deep ensemble's, seed by seed.
    """
    reference = groups.get(REFERENCE)
    base = reference.spread("step") if reference else None
    rows: dict[str, dict[str, float | None]] = {}
    for label, group in groups.items():
        step, memory = group.spread("step"), group.spread("peak_gib")
        row: dict[str, float | None] = {
            "step_ms": None if step is None else 1000 * step.mean,
            "times": None if step is None or base is None else step.mean / base.mean,
            "peak_gib": None if memory is None else memory.mean,
        }
        for name in GAINS:
            own, theirs = group.values(name), reference.values(name) if reference else {}
            found = spread(own[seed] - theirs[seed] for seed in own if seed in theirs)
            row[name] = None if found is None or label == REFERENCE else found.mean
        rows[label] = row
    return rows


def markdown(groups: Mapping[str, Group]) -> str:
    """A table for people, the cheapest first."""
    titles = [f"{TITLES[name]} {'↓' if lower_is_better(name) else '↑'}" for name in GAINS]
    lines = [
        f"| method | ms a step | × deep ensemble | peak GiB | {' | '.join(titles)} | seeds |",
        "|---" + "|---:" * (len(GAINS) + 4) + "|",
    ]
    rows = cost_rows(groups)
    for label in sorted(rows, key=lambda name: rows[name]["step_ms"] or 0.0):
        row = rows[label]
        cost = [_number(row["step_ms"], ".1f"), _number(row["times"], ".2f"), _number(row["peak_gib"], ".1f")]
        gains = ["–" if (value := row[name]) is None else shown(value, name, signed=True) for name in GAINS]
        lines.append(f"| {label} | {' | '.join([*cost, *gains])} | {len(groups[label].results)} |")
    cost = published()["cost"]
    theirs = cost["seconds_per_epoch"]["forde-pca"] / cost["seconds_per_epoch"][REFERENCE]
    note = (
        "Medians of epochs after the first. Scores: differences from the deep ensemble over the seeds both have. "
        f"The paper's FoRDE takes {theirs:.2f} × a deep ensemble ({cost['where']})."
    )
    return "\n".join(lines) + f"\n\n{note}\n"


def comma_separated(groups: Mapping[str, Group]) -> str:
    """The same in plain numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["setting", "step_ms", "times", "peak_gib", *GAINS, "seeds"])
    for label, row in cost_rows(groups).items():
        writer.writerow([label, *(_number(value, ".6g", "") for value in row.values()), len(groups[label].results)])
    return out.getvalue()


def _number(value: float | None, form: str, nothing: str = "–") -> str:
    return nothing if value is None else f"{value:{form}}"
