"""Targets, labels and weights of rows as people give them, checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from forde.errors import FordeError

Array = NDArray[Any]


def refuse_missing(y: Any) -> None:
    """Stop where a row has no target or label: only its owner knows whether it is left out or filled in.

    >>> refuse_missing(["a", None, "b"])
    Traceback (most recent call last):
    forde.errors.FordeError: y is missing in 1 of 3 rows, the first is row 1; leave these rows out of X and y.
    """
    if y is None:
        return
    values = np.asarray(y)
    if values.ndim == 0 or values.dtype.kind not in "fO":
        return
    missing = np.isnan(values) if values.dtype.kind == "f" else _is_missing(values)
    rows = np.flatnonzero(missing.reshape(len(values), -1).any(1))
    if len(rows):
        raise FordeError(
            f"y is missing in {len(rows)} of {len(values)} rows, the first is row {rows[0]}; leave these rows out of X "
            "and y."
        )


def _is_missing(values: Array) -> NDArray[np.bool_]:
    def missing(value: Any) -> bool:
        if isinstance(value, float):
            return math.isnan(value)
        return value is None or type(value).__name__ in ("NAType", "NaTType")  # of pandas

    return np.frompyfunc(missing, 1, 1)(values).astype(bool)


def refuse_text_targets(y: Any) -> None:
    """Stop where targets of a regression are text."""
    values = np.asarray(y)
    text = values.flat[0] if values.dtype.kind in "US" and values.size else None
    if values.dtype.kind == "O":
        text = next((value for value in values.flat if isinstance(value, str)), None)
    if text is not None:
        raise FordeError(
            f"y holds text, such as '{text}', but numbers were expected; use FordeClassifier to predict classes."
        )


def as_labels(y: Array) -> Array:
    """Labels `[N]` of any kind."""
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return y


def row_weights(sample_weight: Any, n_rows: int) -> Array | None:
    """Weights `[N]` that are all right; None where every row counts the same.

    >>> row_weights([1, 2, 3], 4)
    Traceback (most recent call last):
    forde.errors.FordeError: sample_weight has shape [3], but one weight for each row, [4], was expected.
    """
    if sample_weight is None:
        return None
    try:
        weights = np.asarray(sample_weight, dtype=np.float64).copy()  # torch may write to it
    except (TypeError, ValueError):
        raise FordeError(
            f"sample_weight is {str(sample_weight)[:40]!r}, but one number for each row was expected; classes are "
            "weighted by class_weight."
        ) from None
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.shape != (n_rows,):
        raise FordeError(
            f"sample_weight has shape {list(weights.shape)}, but one weight for each row, [{n_rows}], was expected."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        row = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise FordeError(f"sample_weight of row {row} is {weights[row]}, but 0 or a positive number was expected.")
    if not weights.any():
        raise FordeError("every sample_weight is zero, so no row counts; give some rows a positive weight.")
    return weights
