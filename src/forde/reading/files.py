"""Files that can be read to their end, and how much of a name a message repeats."""

from __future__ import annotations

import stat
from pathlib import Path

from forde.errors import FordeError

MAX_SHOWN = 300
"""Characters of a name that a message repeats."""


def check_is_file(path: Path) -> None:
    """Refuse what is missing, and what would not end: pipes and devices, also behind a link."""
    try:
        found = path.stat().st_mode
    except (OSError, ValueError) as error:  # a name may also be too long, lead in a circle or hold a zero
        raise FordeError(f"the file {str(path)[-MAX_SHOWN:]!r} is missing; get the data set again.") from error
    if not stat.S_ISREG(found):
        raise FordeError(f"'{path}' is not a file; get the data set again.")
