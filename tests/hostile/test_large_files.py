"""No reader takes more than 1 GB of memory or 10 s for any file under 1 MB: it is read, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from large_files import MEGABYTE, READ, REFUSED
from watching import Watcher

MAX_PEAK = 1_000_000_000
"""Bytes, of which Python, torch and Arrow take a quarter before anything is read."""
MAX_SECONDS = 10


@pytest.fixture(scope="module")
def watcher() -> Iterator[Watcher]:
    watching = Watcher()
    yield watching
    watching.close()


@pytest.mark.parametrize("name", [*REFUSED, *READ])
def test_small_files_take_little_memory_and_time(watcher: Watcher, tmp_path: Path, name: str) -> None:
    call = (REFUSED | READ)[name](tmp_path)
    assert all(path.stat().st_size < MEGABYTE for path in tmp_path.rglob("*"))
    seen = watcher.call(*map(str, call))
    assert seen.peak < MAX_PEAK
    assert seen.seconds < MAX_SECONDS
    if name in READ:
        assert seen.error == ""
    else:
        assert seen.error.endswith(".") and "\n" not in seen.error and len(seen.error) < 1_000
