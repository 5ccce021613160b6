"""Rows that somebody gives to be predicted: columns by name, numbers from whatever holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forde.data.description import Images, Table
from forde.errors import FordeError, missing_column
from forde.reading.files import MAX_SHOWN

GIVEN = "the given rows"


def in_order(x: Any, features: Sequence[str]) -> np.ndarray:
    """Rows `[N, D]` with the columns in the order of `features`, in float64.

    Args:
        x: a `Table` or a data frame, whose columns are found by name, or rows whose columns are in this order.

    >>> in_order([[1, True]], ["a", "b"])
    array([[1., 1.]])
    """
    if isinstance(x, Images):
        raise FordeError("the ensemble was trained on a table, but images were given; give rows of that table.")
    names = x.feature_names if isinstance(x, Table) else getattr(x, "columns", None)
    try:
        values = np.asarray(x.x if isinstance(x, Table) else x)
    except ValueError:
        raise FordeError("the given rows differ in their number of values; give as many for each.") from None
    if names is not None:
        place = {str(name): number for number, name in enumerate(names)}
        for name in features:
            if name not in place:
                raise missing_column("the given table", name, place)
        values = values[:, [place[name] for name in features]]
    return np.ascontiguousarray(as_numbers(values, features))  # else sums over columns round in another order


def as_numbers(x: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Rows in float64; the error for anything else names its column and row.

    >>> as_numbers(np.array([[True, 2]], object), ["a", "b"])
    array([[1., 2.]])
    """
    if x.dtype.kind in "biuf":
        return x.astype(np.float64)
    if x.dtype.kind in "OSU":
        try:
            return x.astype(np.float64)
        except (TypeError, ValueError):
            raise _no_number(x, names) from None
    raise FordeError(f"{GIVEN} hold {x.dtype}, but numbers were expected; encode or drop it.")


def _no_number(x: np.ndarray, names: Sequence[str]) -> FordeError:
    """The error for the first value that is no number."""
    for row, values in enumerate(np.atleast_2d(x)):
        for name, value in zip(names, values, strict=False):
            try:
                float(value)
            except (TypeError, ValueError):
                shown = str(value)[:MAX_SHOWN]
                return FordeError(
                    f"column '{name}' in {GIVEN} has '{shown}' in {in_words(row)}, but numbers were expected; encode "
                    "or drop it."
                )
    return FordeError(f"{GIVEN} hold something else than numbers; encode or drop it.")


def in_words(row: int) -> str:
    """A row as people count them.

    >>> in_words(0)
    'row 1 (counted from 1)'
    """
    return f"row {row + 1:,} (counted from 1)"
