"""The one exception users meet: a sentence that says what was wrong, what was expected and what to do."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Sequence


class FordeError(ValueError):
    """A mistake in what was given to forde; its message is one sentence that a user can act on."""

    unknown: str | None = None
    """What does not exist by the name that was given, such as a method; None for other mistakes."""


class NonFiniteError(FordeError):
    """A loss, a gradient or a weight that is NaN or infinite."""


class UnrecoverableError(FordeError):
    """What ends one process at once, because others wait for it where they cannot be told."""


class RunInterruptedError(FordeError):
    """A run that a signal stopped, after everything was saved; its message says how to go on."""

    def __init__(self, message: str, by: signal.Signals) -> None:
        super().__init__(message)
        self.signal = by

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that this signal ended: 129 for SIGHUP, 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + int(self.signal)


MOST_NAMES = 50
"""So many known names a message lists; a table may have thousands of columns."""
MOST_CHARACTERS = 200
"""And so many of a name."""
ALIKE = 0.65
"""From here on a name is taken for another one, misspelt; below, 'pixels' would be offered for 'labels'."""
LEAST_OF_A_NAME = 3
"""Characters that are enough to be a part of a name, as in 'pca'."""


def unknown_name(kind: str, given: object, known: Iterable[str]) -> FordeError:
    """The error for a name that does not exist, with the nearest one that does.

    >>> str(unknown_name("method", "forde-pcs", ["forde-pca", "lit"]))
    "unknown method 'forde-pcs'; did you mean 'forde-pca'? Known: forde-pca, lit."
    """
    asked, (hint, names) = str(given)[:MOST_CHARACTERS], _nearest_and_all(str(given), known)
    error = FordeError(f"unknown {kind} '{asked}'{hint} Known: {names}.")
    error.unknown = kind
    return error


def missing_column(where: str, wanted: str, there: Iterable[str]) -> FordeError:
    """The error for a table without a column that the training data has, with the nearest one that is there.

    >>> str(missing_column("the given table", "width", ["height", "widht"]))
    "the given table has no column 'width', as the training data has; did you mean 'widht'? It has: height, widht."
    """
    asked, (hint, names) = wanted[:MOST_CHARACTERS], _nearest_and_all(wanted, there)
    return FordeError(f"{where} has no column '{asked}', as the training data has{hint} It has: {names}.")


def missing_key(where: str, wanted: str, there: Iterable[str], advice: str) -> FordeError:
    """The error for a dict without a key that it needs, with the nearest one that is there.

    >>> str(missing_key("a batch", "labels", ["pixels", "lables"], "put the targets there"))
    "a batch has no 'labels'; did you mean 'lables'? It has: lables, pixels; put the targets there."
    """
    hint, names = _nearest_and_all(wanted, there)
    return FordeError(f"{where} has no '{wanted}'{hint} It has: {names}; {advice}.")


def _nearest_and_all(asked: str, known: Iterable[str]) -> tuple[str, str]:
    names = sorted(name[:MOST_CHARACTERS] for name in known)
    near = _nearest(asked[:MOST_CHARACTERS], names)
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    hint = "." if near is None else f"; did you mean '{near}'?"
    return hint, f"{', '.join(names[:MOST_NAMES]) or 'none'}{more}"


def _nearest(asked: str, names: Sequence[str]) -> str | None:
    """The name that was meant, if one is like it or has it as a part.

    >>> _nearest("Forde-PCS", ["forde-pca", "lit"]), _nearest("deep", ["deep-ensemble"]), _nearest("fast", ["auto"])
    ('forde-pca', 'deep-ensemble', None)
    """
    small, known = asked.lower(), {name.lower(): name for name in names}
    parts = sorted((name for name in known if len(small) >= LEAST_OF_A_NAME and small in name), key=len)
    near = [*difflib.get_close_matches(small, known, n=1, cutoff=ALIKE), *parts]
    return known[near[0]] if near else None


def first_line(error: BaseException) -> str:
    """What an error says first, for a sentence of one's own.

    >>> first_line(ValueError("wrong size"))
    'wrong size'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def whole_number(name: str, value: object, *, at_least: int) -> int:
    """An option that must be a whole number, or the error that says so.

    >>> whole_number("epochs", 5, at_least=1)
    5
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < at_least:
        raise FordeError(f"{name} is {value!r}, but a whole number of at least {at_least} was expected.")
    return int(value)


def number_from_0(name: str, value: object) -> float:
    """An option that must be 0 or a positive number, or the error that says so.

    >>> number_from_0("lr", 0.1)
    0.1
    """
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__") or not 0 <= float(value) < float("inf"):
        raise FordeError(f"{name} is {value!r}, but 0 or a positive number was expected.")
    return float(value)
