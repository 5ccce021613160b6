"""Which trial to take: the lowest NLL under perturbations among those that cost no more clean NLL than allowed.

Every trial is compared with the deep ensemble of its study, sample by sample. With d `[K, N]` the differences of
−ln p̄(y) for K seeds and N validation samples,

    difference = mean of d,    error² = Var_n(mean_k d)/N  +  Var_k(mean_n d)/K   (the second for K > 1 only)

The first is the standard error that a paired bootstrap over samples converges to. A difference of fewer than two errors
is called noise. The lowest of many trials is lower on the validation split than it will be elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from forde.errors import FordeError

CLEAR = 2.0
"""Standard errors beyond which a difference is more than noise."""


class Paired(NamedTuple):
    """A difference with its standard error."""

    value: float
    error: float

    @property
    def is_noise(self) -> bool:
        """Whether it is no larger than two standard errors."""
        return abs(self.value) <= CLEAR * self.error

    def __str__(self) -> str:
        return f"{self.value:+.4f} ± {self.error:.4f}".replace("-", "−")


def paired(of: np.ndarray, against: np.ndarray) -> Paired:
    """The mean of differences `[K, N]` of K seeds and N samples.

    >>> print(paired(np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])))
    +2.0000 ± 1.0000
    """
    d = of.astype(np.float64) - against
    seeds, samples = d.shape
    variance = d.mean(0).var(ddof=1) / samples if samples > 1 else 0.0
    if seeds > 1:
        variance += d.mean(1).var(ddof=1) / seeds
    return Paired(float(d.mean()), float(variance**0.5))


@dataclass(frozen=True)
class Candidate:
    """A trial that was trained to its end."""

    number: int
    values: Mapping[str, float]
    """Strength, α and what else was searched; empty for the deep ensemble."""
    clean: np.ndarray
    """−ln p̄(y) `[K, N]` of K seeds and N samples."""
    corrupted: np.ndarray
    """Its mean over perturbations `[K, N]`."""
    accuracy: tuple[float, float] | None = None
    """Clean, and the mean over perturbations."""
    seconds: float = 0.0

    @property
    def is_baseline(self) -> bool:
        """Whether it is the deep ensemble."""
        return not self.values

    @property
    def name(self) -> str:
        """Words for its values.

        >>> Candidate(3, {"strength": 12.0, "alpha": 0.5}, np.zeros((1, 1)), np.zeros((1, 1))).name
        'strength 12, alpha 0.5'
        """
        return ", ".join(f"{name} {value:g}" for name, value in self.values.items()) or "deep ensemble"


@dataclass(frozen=True)
class Choice:
    """What is taken, and what can be said about it."""

    chosen: Candidate
    baseline: Candidate
    clean_budget: float
    clean: Mapping[int, Paired]
    """Clean NLL − the deep ensemble's, of each trial by number."""
    corrupted: Mapping[int, Paired]
    """The same under perturbations."""
    alike: Sequence[int]
    """Allowed trials whose NLL under perturbations differs from the chosen one's by noise."""
    frontier: Sequence[int]
    """Trials that no other beats on clean and perturbed data alike, from the best clean NLL to the worst."""

    def is_allowed(self, number: int) -> bool:
        """Whether a trial costs no more clean NLL than it may."""
        return self.clean[number].value <= self.clean_budget


def choose(candidates: Sequence[Candidate], clean_budget: float) -> Choice:
    """Choose among finished trials, of which one is the deep ensemble.

    >>> def trial(number, clean, corrupted, **values):
    ...     return Candidate(number, values, np.array([[clean, clean]]), np.array([[corrupted, corrupted]]))
    >>> trials = [trial(0, 0.30, 0.9), trial(1, 0.305, 0.8, strength=3.0), trial(2, 0.4, 0.7, strength=50.0)]
    >>> choice = choose(trials, clean_budget=0.01)
    >>> choice.chosen.name, choice.frontier
    ('strength 3', [0, 1, 2])
    """
    baseline = next((one for one in candidates if one.is_baseline), None)
    if baseline is None:
        raise FordeError("the deep ensemble has not been trained yet, so there is nothing to compare with; go on.")
    clean = {one.number: paired(one.clean, baseline.clean) for one in candidates}
    corrupted = {one.number: paired(one.corrupted, baseline.corrupted) for one in candidates}
    allowed = [one for one in candidates if one is baseline or clean[one.number].value <= clean_budget]
    chosen = min(allowed, key=lambda one: (one.corrupted.mean(), one.number))
    alike = [
        one.number for one in allowed
        if one is not chosen and paired(one.corrupted, chosen.corrupted).is_noise
    ]  # fmt: skip
    frontier, least = [], float("inf")
    for one in sorted(candidates, key=lambda one: (one.clean.mean(), one.corrupted.mean())):
        if one.corrupted.mean() < least:
            frontier.append(one.number)
            least = one.corrupted.mean()
    return Choice(chosen, baseline, clean_budget, clean, corrupted, alike, frontier)


def explained(choice: Choice, searched: Sequence[str]) -> str:
    """Why this one, in a few sentences.

    Args:
        searched: the names of what was searched.
    """
    one = choice.chosen
    clean, corrupted = choice.clean[one.number], choice.corrupted[one.number]
    allowed = f"allowed are {choice.clean_budget:+g}"
    seeds = len(one.clean)
    of = f"of {one.clean.shape[1]:,} validation samples" + (f" and {seeds} seeds" if seeds > 1 else "")
    lines = []
    if one.is_baseline:
        lines.append(
            f"Trial {one.number} is chosen, the deep ensemble: of what was tried and is allowed on clean data "
            f"({allowed}), nothing has a lower NLL under perturbations."
        )
    else:
        lines.append(
            f"Trial {one.number} is chosen, {one.name}: under perturbations its NLL differs from the deep ensemble's "
            f"by {corrupted}, on clean data by {clean} ({allowed})."
        )
        if corrupted.is_noise:
            lines.append(
                "The difference under perturbations is within noise: the deep ensemble may be as good, and costs less."
            )
        if clean.is_noise and clean.value > 0:
            lines.append("The difference on clean data is within noise.")
        elif clean.value + clean.error > choice.clean_budget:
            lines.append("On clean data the limit is less than a standard error away; another split may exceed it.")
        if set(searched) & {"lr", "weight_decay"}:
            others = " and ".join(name.replace("_", " ") for name in ("lr", "weight_decay") if name in searched)
            lines.append(f"The deep ensemble was trained with the given {others}, so part of the gain may be theirs.")
    if choice.alike:
        numbers = ", ".join(map(str, choice.alike))
        many = "trial" if len(choice.alike) == 1 else "trials"
        lines.append(f"Within noise of it under perturbations, and allowed: {many} {numbers}.")
    unseen = "" if seeds > 1 else "; another seed may change more than that (--seeds 3 counts it in)"
    lines.append(f"Errors are standard errors {of}, paired{unseen}.")
    return "\n".join(lines)


def to_dict(choice: Choice, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Plain numbers for JSON."""
    return {
        "chosen": choice.chosen.number,
        "values": dict(choice.chosen.values),
        "clean_budget": choice.clean_budget,
        "within_noise_of_chosen": list(choice.alike),
        "frontier": list(choice.frontier),
        "trials": [
            {
                "number": one.number, "values": dict(one.values),
                "clean_nll": float(one.clean.mean()), "corrupted_nll": float(one.corrupted.mean()),
                "clean_difference": choice.clean[one.number]._asdict(),
                "corrupted_difference": choice.corrupted[one.number]._asdict(),
                "clean_accuracy": one.accuracy and one.accuracy[0],
                "corrupted_accuracy": one.accuracy and one.accuracy[1],
                "allowed": one.is_baseline or choice.is_allowed(one.number), "seconds": one.seconds,
            }
            for one in candidates
        ],
    }  # fmt: skip
