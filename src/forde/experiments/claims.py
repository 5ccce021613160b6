"""Claims as comparisons of numbers, and their verdicts from seeds in pairs.

A comparison of two settings takes the difference of a number seed by seed, in the direction of the claim (positive: as
claimed). With n seeds that both have,

    margin = mean of the differences,   error = their standard deviation / √n,

and the difference is significant where |margin| exceeds two errors. One seed has no error, so it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forde.experiments.groups import Group, lower_is_better, spread

ERRORS = 2.0
Verdict = Literal["holds", "holds so far", "does not hold", "not significant", "not tested"]


@dataclass(frozen=True)
class Comparison:
    """The first setting is better than the second in a number, by more than `by`."""

    number: str
    first: str
    second: str
    by: float = 0.0
    """In the unit of the number; a negative one allows the first to be worse by so much."""


@dataclass(frozen=True)
class Claim:
    """A sentence, and the comparisons that it stands for."""

    text: str
    comparisons: tuple[Comparison, ...]
    source: str = "the paper"
    need: Literal["all", "most"] = "all"
    """How many must hold."""
    denied: bool = False
    """The claim is that there is no significant gain."""
    data: str | None = None
    """The data set that it is about; None for all of the experiment."""


@dataclass(frozen=True)
class Judged:
    """A comparison and what came out."""

    comparison: Comparison
    verdict: Verdict
    margin: float | None = None
    """Mean gain of the first over the second, in the direction of the claim."""
    error: float | None = None
    seeds: int = 0


@dataclass(frozen=True)
class Finding:
    """A claim and what came out."""

    claim: Claim
    verdict: Verdict
    judged: tuple[Judged, ...]

    @property
    def closest(self) -> Judged | None:
        """The comparison that decides: the least in favour of the claim, in standard errors; the middle one of most."""
        tested = sorted((each for each in self.judged if each.margin is not None), key=_favour)
        if not tested:
            return None
        if self.claim.denied:
            return tested[-1]
        return tested[(len(tested) - 1) // 2] if self.claim.need == "most" else tested[0]


def better(number: str, first: str, *others: str, by: float = 0.0) -> tuple[Comparison, ...]:
    """The first is better than each of the others.

    >>> [each.second for each in better("nll", "forde", "lit", "swag")]
    ['lit', 'swag']
    """
    return tuple(Comparison(number, first, other, by) for other in others)


def compare(comparison: Comparison, groups: Mapping[str, Group]) -> Judged:
    """The verdict on one comparison."""
    if comparison.first not in groups or comparison.second not in groups:
        return Judged(comparison, "not tested")
    first, second = (groups[name].values(comparison.number) for name in (comparison.first, comparison.second))
    sign = -1.0 if lower_is_better(comparison.number) else 1.0
    found = spread(sign * (first[seed] - second[seed]) for seed in first if seed in second)
    if found is None:
        return Judged(comparison, "not tested")
    return Judged(
        comparison, significance(found.mean - comparison.by, found.error), found.mean, found.error, found.n
    )  # fmt: skip


def significance(margin: float, error: float | None) -> Verdict:
    """Which side of zero a margin is on, if that can be told.

    >>> significance(0.3, 0.1), significance(0.1, 0.1), significance(-0.3, 0.1), significance(0.3, None)
    ('holds', 'not significant', 'does not hold', 'not significant')
    """
    if error is None or abs(margin) <= ERRORS * error:
        return "not significant"
    return "holds" if margin > 0 else "does not hold"


def judge(claim: Claim, groups: Mapping[str, Group]) -> Finding:
    """The verdict on a claim: all its comparisons must hold, or most.

    Where some cannot be tested yet, a claim that would hold only holds so far.
    """
    judged = tuple(compare(each, groups) for each in claim.comparisons)
    tested = [each for each in judged if each.verdict != "not tested"]
    if not tested:
        return Finding(claim, "not tested", judged)
    verdict = _verdict(claim, tested)
    return Finding(claim, "holds so far" if verdict == "holds" and len(tested) < len(judged) else verdict, judged)


def _verdict(claim: Claim, tested: Sequence[Judged]) -> Verdict:
    holding = sum(each.verdict == "holds" for each in tested)
    contrary = sum(each.verdict == "does not hold" for each in tested)
    if claim.denied:
        decided = any(each.error is not None for each in tested)
        return "does not hold" if holding else "holds" if decided else "not significant"
    if claim.need == "most":
        half = len(tested) / 2
        return "holds" if holding > half else "does not hold" if contrary >= half else "not significant"
    return "holds" if holding == len(tested) else "does not hold" if contrary else "not significant"


def judged_all(claims: Sequence[Claim], groups: Mapping[str, Group], data: str) -> list[Finding]:
    """The verdicts on all claims that are about a data set."""
    return [judge(claim, groups) for claim in claims if claim.data in (None, data)]


def _favour(judged: Judged) -> float:
    assert judged.margin is not None
    gain = judged.margin - judged.comparison.by
    if judged.error is None:
        return 0.0
    return gain / judged.error if judged.error else (float("inf") if gain > 0 else float("-inf") if gain < 0 else 0.0)
