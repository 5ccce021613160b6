"""What every benchmark returns: one row for each measurement, settings first."""

from __future__ import annotations

Row = dict[str, object]


def ratio(a: float | None, b: float | None) -> float | None:
    """a/b where both were measured.

    >>> ratio(3.0, 2.0), ratio(None, 2.0)
    (1.5, None)
    """
    return None if a is None or b is None else a / b
