"""What the first line of a CSV file tells: its separator, its encoding, and whether it names the columns at all."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from forde.errors import FordeError

log = logging.getLogger(__name__)

SEPARATORS = {b";": "semicolons", b"\t": "tabs", b"|": "bars"}
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""What pandas makes of an index: no name, that same column read and written again, and its name in Parquet files."""
_LEAST_NUMBERED = 3
"""Columns from which on 0, 1, 2, ... are the names of a data frame without any; fewer may be a row of values."""


def check_bytes(header: bytes, path: Path) -> None:
    """Refuse another encoding or separator, before anything is read.

    >>> check_bytes(b"a,b,y", Path("a.csv"))
    """
    if header.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in header[:4]:
        raise FordeError(
            f"'{path}' is written in UTF-16, but UTF-8 was expected; write it again with encoding='utf-8'."
        )
    found = [name for separator, name in SEPARATORS.items() if separator in header]
    if found and b"," not in header:
        raise FordeError(
            f"the columns in '{path}' are separated by {found[0]}, but commas were expected; write it again with "
            "commas (and decimal points)."
        )


def check_is_header(names: Sequence[str], path: Path) -> None:
    """Refuse names that are all numbers: they are a row of values, unless they count 0, 1, 2, ... as pandas does.

    >>> check_is_header(["0", "1", "2"], Path("a.csv"))
    """
    given = [name for name in names if name]
    others = [name for name in given if not is_number(name)]
    if given and not others and (len(given) < _LEAST_NUMBERED or given != [str(n) for n in range(len(given))]):
        shown = ",".join(names[:5]) + (",..." if len(names) > 5 else "")
        raise FordeError(
            f"the first line of '{path}' holds numbers only ({shown[:60]}), but it should name the columns; add a line "
            "of names above it."
        )
    if len(others) == 1 < len(given) and any("." in name for name in given if name not in others):
        log.warning(
            "the first line of '%s' is taken for the names of columns, but all except '%s' are numbers; if it is a row "
            "of the data, add a line of names above it", path, others[0],
        )  # fmt: skip


def warn_of_index(features: Sequence[str], path: Path) -> None:
    """Say that a column without a name is a feature: usually it is an index that somebody wrote by oversight."""
    for place, name in enumerate(features):
        if _INDEX.fullmatch(name):
            what = f"a column '{name}'" if name else "a column without a name"
            log.warning(
                "'%s' has %s, as pandas writes the index of a data frame; it is used as feature %d. If it is none, "
                "write the file with index=False", path, what, place + 1,
            )  # fmt: skip
            return


def is_number(text: str) -> bool:
    """Whether a cell's text is one.

    >>> is_number("1e-3"), is_number("one")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
