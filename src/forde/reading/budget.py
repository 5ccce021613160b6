"""How much memory reading a file may take; readers ask before they read, from what the file's headers say."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from forde.errors import FordeError
from forde.reading.files import MAX_SHOWN

VARIABLE = "FORDE_MAX_BYTES"
"""The environment variable with the user's own limit."""
SHARE = 2
"""Without it, one part in this many of the memory there is."""
LET_OFF = 400_000_000
MAX_RATIO = 100
"""Nor may a file take more than this many times its size on top of LET_OFF: no small file takes a large machine."""
_CGROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_OLDER = "memory.limit_in_bytes"
"""As the first version of control groups calls memory.max."""


def check_fits(need: int, what: str | Path, files: Iterable[Path]) -> None:
    """Refuse to read `what`, which is in these files, if it needs more bytes of memory than are allowed for them.

    >>> check_fits(1_000, Path("set.npz"), [])
    >>> check_fits(10**15, Path("set.npz"), [])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    forde.errors.FordeError: reading 'set.npz' would take 1,000,000,000,000,000 bytes of memory, but ...
    """
    allowed, reason = _own_limit(), VARIABLE
    if allowed is None:
        allowed, reason = _memory() // SHARE, "half of the memory there is"
        if need > LET_OFF:  # sizes of many files take a while, and few sets need them
            stored = sum(map(_size, set(files)))
            expected = LET_OFF + MAX_RATIO * stored
            if expected < allowed:
                allowed, reason = expected, f"{LET_OFF:,} and {MAX_RATIO} times the {stored:,} bytes on disk"
    if need > allowed:
        name = f"'{str(what)[-MAX_SHOWN:]}'" if isinstance(what, Path) else what
        raise FordeError(
            f"reading {name} would take {need:,} bytes of memory, but {allowed:,} are allowed ({reason}); "
            f"set {VARIABLE}={need} if you trust the file and have the memory."
        )


def _own_limit() -> int | None:
    value = os.environ.get(VARIABLE, "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and int(value)):
        raise FordeError(
            f"{VARIABLE} is {value[:MAX_SHOWN]!r}, but a whole number of bytes such as 8000000000 was expected; "
            "correct or unset it."
        )
    return int(value)


@cache
def _memory() -> int:
    """The memory of the machine, or of the container if that has less."""
    limits = [_number(folder / name) for folder in _control_groups() for name in ("memory.max", _OLDER)]
    with suppress(AttributeError, ValueError, OSError):  # Windows lacks sysconf; the size of the file still counts
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min((limit for limit in limits if limit > 0), default=1 << 62)


def _control_groups() -> list[Path]:
    """The folders of this process's control groups and of those around them, any of which may have a limit."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = _CGROUPS / controllers if controllers else _CGROUPS
        place = root / path.lstrip("/")
        groups += [folder for folder in (place, *place.parents) if folder.is_relative_to(root)]
    return groups


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # whoever reads it says so
        return 0


def _number(path: Path) -> int:
    """The number in a file, or 0 if there is none ("max" means no limit)."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
