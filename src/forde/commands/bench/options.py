"""Options that hold several values with commas between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forde.errors import FordeError

Number = TypeVar("Number", int, float)


def names(text: str) -> list[str]:
    """What stands between the commas.

    >>> names("eager, auto")
    ['eager', 'auto']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(option: str, text: str) -> list[int]:
    """Whole numbers of at least 1.

    >>> whole_numbers("--members", "5,10")
    [5, 10]
    """
    return _numbers(option, text, int, "whole numbers of at least 1", "5,10")


def shares(option: str, text: str) -> list[float]:
    """Numbers above 0.

    >>> shares("--fraction", "0.25")
    [0.25]
    """
    return _numbers(option, text, float, "numbers above 0 and up to 1", "0.25,0.5")


def _numbers(option: str, text: str, kind: Callable[[str], Number], expected: str, example: str) -> list[Number]:
    try:
        found = [kind(part) for part in names(text)]
    except ValueError:
        found = [kind("0")]
    if any(number <= 0 for number in found):
        raise FordeError(f"{option} is '{text}', but {expected} were expected; write for example {option} {example}.")
    return found
