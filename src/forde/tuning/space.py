"""What is searched, and where: strength and α, by choice the learning rate and the weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forde.errors import FordeError, unknown_name

if TYPE_CHECKING:
    from optuna.trial import Trial

DIGITS = 3
"""Significant digits of a value that is tried, so that it can be typed again."""


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included; equal ones fix the value.

    >>> Range.parsed("strength", "1:100", Range(0.3, 100.0))
    Range(low=1.0, high=100.0, log=True)
    """

    low: float
    high: float
    log: bool = True

    @classmethod
    def parsed(cls, name: str, text: str, default: Range) -> Range:
        """`low:high`, or one number."""
        parts = text.split(":")
        try:
            low, high = float(parts[0]), float(parts[-1])
        except ValueError:
            low, high = 1.0, 0.0
        least = 0.0 if name == "alpha" else 1e-12
        if len(parts) > 2 or not least <= low <= high < float("inf") or (name == "alpha" and high > 1):
            expected = "from 0 to 1" if name == "alpha" else "of positive numbers"
            raise FordeError(f"{name} is '{text}', but a range {expected} as in {name}={default} was expected.")
        return cls(low, high, default.log)

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}"


def default_space(lr: float) -> dict[str, Range]:
    """All that can be searched, around a learning rate."""
    return {
        "strength": Range(0.3, 100.0),
        "alpha": Range(0.0, 1.0, log=False),
        "lr": Range(lr / 10, lr * 3),
        "weight_decay": Range(1e-5, 1e-2),
    }


def parsed_space(text: str, lr: float) -> dict[str, Range]:
    """Names with commas between, each with a range of its own where it says so.

    >>> {name: str(one) for name, one in parsed_space("strength=1:30, alpha, lr", lr=0.1).items()}
    {'strength': '1:30', 'alpha': '0:1', 'lr': '0.01:0.3'}
    """
    known, found = default_space(lr), {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, given, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known:
            raise unknown_name("setting to search", name, known)
        found[name] = Range.parsed(name, value, known[name]) if given else known[name]
    if "strength" not in found:
        raise FordeError(f"'{text}' does not search the strength, which tuning is for; name it, as in strength,alpha.")
    return found


def suggested(trial: Trial, space: Mapping[str, Range]) -> dict[str, float]:
    """The values of a trial, rounded."""
    found = {}
    for name, one in space.items():
        value = trial.suggest_float(name, one.low, one.high, log=one.log) if one.low < one.high else one.low
        found[name] = round(value, 2) if name == "alpha" else float(f"{value:.{DIGITS}g}")
    return found
