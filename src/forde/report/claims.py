"""The summary: claims one by one, with verdict, margin and standard error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forde.experiments.claims import Finding, Judged, Verdict

SIGNS: dict[Verdict, str] = {
    "holds": "holds",
    "holds so far": "holds so far",
    "does not hold": "**does not hold**",
    "not significant": "not significant",
    "not tested": "not tested",
}
WORDS: dict[Verdict, str] = {
    "holds": "hold",
    "holds so far": "hold so far",
    "does not hold": "do not",
    "not significant": "not significant",
    "not tested": "not tested",
}
LEGEND = (
    "A comparison is paired over seeds: margin = mean gain of the first over the second in the direction of the claim, "
    "± its standard error. It is significant beyond two standard errors, which of few seeds is a weak test; one seed "
    "decides nothing. The closest comparison is the one on which the verdict hangs; the last column counts "
    "comparisons that are significant for and against the claim. A claim holds so far where some cannot be tested yet."
)


def summary(title: str, findings: Sequence[Finding]) -> str:
    """A section of Markdown; nothing without claims."""
    if not findings:
        return ""
    counts = Counter(each.verdict for each in findings)
    said = ", ".join(f"{counts[verdict]} {words}" for verdict, words in WORDS.items() if counts[verdict])
    lines = [
        f"#### Claims, {title}", "", f"{len(findings)} claims: {said}.", "",
        "| claim | of | verdict | closest comparison | margin ± error | seeds | for / against / tested |",
        "|---|---|---|---|---:|---:|---:|",
    ]  # fmt: skip
    if title.endswith("smoke"):
        lines[2:2] = ["**The smoke budget shows that everything runs. It decides nothing.**", ""]
    lines += [_row(each) for each in findings]
    return "\n".join([*lines, "", LEGEND, ""])


def _row(finding: Finding) -> str:
    closest = finding.closest
    counts = Counter(each.verdict for each in finding.judged)
    tested = len(finding.judged) - counts["not tested"]
    number = f"{counts['holds']} / {counts['does not hold']} / {tested} of {len(finding.judged)}"
    if closest is None:
        return f"| {finding.claim.text} | {finding.claim.source} | {SIGNS[finding.verdict]} | – | – | 0 | {number} |"
    what = f"{closest.comparison.number}: {closest.comparison.first} against {closest.comparison.second}"
    return (
        f"| {finding.claim.text} | {finding.claim.source} | {SIGNS[finding.verdict]} | {what} | {margin(closest)} "
        f"| {closest.seeds} | {number} |"
    )


def margin(judged: Judged) -> str:
    """`+0.0123 ± 0.0045`.

    >>> from forde.experiments.claims import Comparison
    >>> margin(Judged(Comparison("nll", "a", "b"), "holds", 0.01, 0.002, 3))
    '+0.0100 ± 0.0020'
    """
    if judged.margin is None:
        return "–"
    return f"{judged.margin:+.4f}" + ("" if judged.error is None else f" ± {judged.error:.4f}")
