"""Threads that do not fight: small networks gain nothing from many, and lose much where other work runs beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from joblib import effective_n_jobs

_lock = threading.Lock()
_inside = 0
_before = 1


@contextmanager
def torch_threads(n_jobs: int | None) -> Iterator[None]:
    """Inside, torch uses so many threads: None means 1, -1 one for each core, and 1 inside of joblib's workers.

    The number is one of the process. Where several fits run in its threads, each ends with what was before the first.

    >>> with torch_threads(None):
    ...     torch.get_num_threads()
    1
    """
    global _inside, _before  # noqa: PLW0603
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(effective_n_jobs(n_jobs))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(_before)
