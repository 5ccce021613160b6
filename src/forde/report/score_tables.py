"""Tables of scores beside the published ones: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from forde.experiments.groups import Group, Spread, lower_is_better

SCORES = ("nll", "accuracy", "ece", "cA", "cNLL", "cECE")
TITLES = {"nll": "NLL", "accuracy": "accuracy %", "ece": "ECE", "cA": "cA %", "cNLL": "cNLL", "cECE": "cECE"}
PERCENT = {"accuracy", "cA"}
DIGITS = {"nll": 3, "accuracy": 2, "ece": 4, "cA": 2, "cNLL": 3, "cECE": 4}
MARKS = (
    "Mean ± standard deviation over seeds. **Bold**: best of the rows with most seeds; †: of these, within one "
    "standard deviation of the best."
)
PAPERS = "Below: the paper's number and the difference, ours − paper's."
POOLED = (
    "cA, cNLL and cECE: all corruptions of a severity pooled, then the mean of the severities, as in the authors' code."
)


@dataclass(frozen=True)
class Entry:
    """One score of one setting."""

    ours: Spread
    paper: float | None
    best: bool
    near: bool
    """Within one standard deviation of the best."""

    @property
    def difference(self) -> float | None:
        """Ours − the paper's."""
        return None if self.paper is None else self.ours.mean - self.paper


Rows = dict[str, dict[str, Entry | None]]
"""Entries by label and score."""


@lru_cache(maxsize=1)
def published() -> dict[str, Any]:
    """The paper's tables, as `published.json` has them.

    >>> published()["tables"]["cifar10"]["rows"]["forde-pca"]["cNLL"]
    [0.71]
    """
    text = files("forde.experiments").joinpath("published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def rows_of(groups: Mapping[str, Group], table: str | None) -> Rows:
    """Entries of all settings; published ones are found by the method, whatever its prior.

    Args:
        table: key in `published.json`, or None.
    """
    theirs = published()["tables"][table]["rows"] if table else {}
    spreads = {label: {name: group.spread(name) for name in SCORES} for label, group in groups.items()}
    rows: Rows = {label: {} for label in groups}
    for name in SCORES:
        there = [spread for own in spreads.values() if (spread := own[name]) is not None]
        most = max((each.n for each in there), default=0)  # means over other seeds do not compare
        best = best_of([each for each in there if each.n == most], lower=lower_is_better(name))
        for label, group in groups.items():
            own = spreads[label][name]
            paper = theirs.get(_published_name(group, table), {}).get(name)
            rows[label][name] = None if own is None or best is None else Entry(
                own, paper[0] if paper else None, own.n == most and own.mean == best.mean,
                own.n == most and own.mean != best.mean and abs(own.mean - best.mean) <= (best.std or 0.0),
            )  # fmt: skip
    return rows


def best_of(spreads: Sequence[Spread], *, lower: bool) -> Spread | None:
    """The best mean.

    >>> best_of([Spread(1.0, None, 1), Spread(2.0, None, 1)], lower=False)
    Spread(mean=2.0, std=None, n=1)
    """
    if not spreads:
        return None
    return min(spreads, key=lambda each: each.mean) if lower else max(spreads, key=lambda each: each.mean)


def _published_name(group: Group, table: str | None) -> str:
    """The paper's EmpCov table has that prior for all but FoRDE; its other tables have it nowhere."""
    expected = "empcov" if table == "empcov" and group.cell.method != "forde-pca" else "isotropic"
    return group.cell.method if group.cell.prior == expected else ""


def columns_of(rows: Rows) -> list[str]:
    """The scores that some setting has."""
    return [name for name in SCORES if any(own[name] is not None for own in rows.values())]


def shown(value: float, name: str, *, signed: bool = False) -> str:
    """A number in the units and digits of its column.

    >>> shown(0.9634, "accuracy"), shown(-0.0123, "nll", signed=True)
    ('96.34', '-0.012')
    """
    scale = 100 if name in PERCENT else 1
    return f"{scale * value:{'+' if signed else ''}.{DIGITS[name]}f}"


def legend(*, beside_paper: bool) -> str:
    """What the signs in a table mean.

    >>> "the paper's number" in legend(beside_paper=False)
    False
    """
    return " ".join([MARKS, PAPERS, POOLED] if beside_paper else [MARKS, POOLED])


def markdown(rows: Rows, groups: Mapping[str, Group], *, beside_paper: bool) -> str:
    """A table for people.

    Args:
        beside_paper: whether the paper's numbers, and the differences, stand below ours.
    """
    columns = columns_of(rows)
    lines = [
        f"| method | {' | '.join(TITLES[name] for name in columns)} | seeds |",
        "|---" + "|---:" * (len(columns) + 1) + "|",
    ]
    for label, own in rows.items():
        cells = [_in_markdown(own[name], name, beside_paper=beside_paper) for name in columns]
        lines.append(f"| {label} | {' | '.join(cells)} | {len(groups[label].results)} |")
    return "\n".join(lines) + "\n"


def _in_markdown(entry: Entry | None, name: str, *, beside_paper: bool) -> str:
    if entry is None:
        return "–"
    text = shown(entry.ours.mean, name)
    text = f"**{text}**" if entry.best else text
    text += f" ± {shown(entry.ours.std, name)}" if entry.ours.std is not None else ""
    text += " †" if entry.near else ""
    if not beside_paper or entry.paper is None or entry.difference is None:
        return text
    return f"{text}<br>{shown(entry.paper, name)} ({shown(entry.difference, name, signed=True)})"


def comma_separated(rows: Rows, groups: Mapping[str, Group]) -> str:
    """One line for each setting and score, in plain units (accuracy from 0 to 1)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["setting", "method", "prior", "score", "mean", "std", "seeds", "paper", "difference", "best", "near_best"]
    )
    for label, own in rows.items():
        cell = groups[label].cell
        for name, entry in own.items():
            if entry is not None:
                numbers = (entry.ours.mean, entry.ours.std, entry.ours.n, entry.paper, entry.difference)
                writer.writerow(
                    [label, cell.method, cell.prior, name, *map(_in_csv, numbers), int(entry.best), int(entry.near)]
                )
    return out.getvalue()


def _in_csv(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def latex(rows: Rows, caption: str) -> str:
    """A table for a paper (needs the package booktabs)."""
    columns = columns_of(rows)
    head = " & ".join(["Method", *(TITLES[name].replace("%", r"\%") for name in columns)])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(caption)}}}",
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
    ]
    for label, own in rows.items():
        first = [_in_latex(own[name], name) for name in columns]
        lines.append(rf"{escaped(label)} & {' & '.join(first)} \\")
        if any(entry is not None and entry.paper is not None for entry in own.values()):
            second = [_paper_in_latex(own[name], name) for name in columns]
            lines.append(rf"\quad paper & {' & '.join(second)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _in_latex(entry: Entry | None, name: str) -> str:
    if entry is None:
        return "--"
    text = shown(entry.ours.mean, name)
    text = rf"\mathbf{{{text}}}" if entry.best else text
    text += rf" \pm {shown(entry.ours.std, name)}" if entry.ours.std is not None else ""
    return f"${text}$" + (r" $^\dagger$" if entry.near else "")


def _paper_in_latex(entry: Entry | None, name: str) -> str:
    if entry is None or entry.paper is None or entry.difference is None:
        return "--"
    return f"${shown(entry.paper, name)}$ (${shown(entry.difference, name, signed=True)}$)"


def escaped(text: str) -> str:
    """Text for LaTeX.

    >>> escaped("a_b 5 %")
    'a\\\\_b 5 \\\\%'
    """
    for sign in "&%$#_{}":
        text = text.replace(sign, rf"\{sign}")
    return text.replace("×", r"$\times$").replace("α", r"$\alpha$")
