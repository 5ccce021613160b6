"""What every hostile file is tried under: a clock, a limit on memory, and hashes of all files that were there."""

from __future__ import annotations

import hashlib
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 20
MAX_BYTES = 128 << 20
"""Of memory, for files that are far smaller; numpy and torch need some for themselves."""


class HangError(BaseException):
    """Not an Exception, so that no reader takes it for a broken file."""


@contextmanager
def no_hang(seconds: float = SECONDS) -> Iterator[None]:
    """Fail after some seconds."""

    def stop(*_: object) -> None:
        raise HangError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def little_memory(max_bytes: int = MAX_BYTES) -> Iterator[None]:
    """Fail if Python, numpy and pickle together ask for more, even if they never touch it."""
    tracemalloc.start(1)
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < max_bytes, f"{peak:,} bytes were allocated"


def fingerprints(folder: Path) -> dict[Path, str]:
    """The hash of every file below a folder; links are what they point to, by name."""
    return {path: _fingerprint(path) for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()}


def _fingerprint(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "neither file nor folder"
