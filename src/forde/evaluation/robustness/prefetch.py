"""The next cells, read or made in threads while the device works on the current one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(work: Callable[[T], R], items: Sequence[T], threads: int) -> Generator[R, None, None]:
    """`work(item)` of each item in order, up to `threads` of them computed ahead; closing it drops what waits.

    >>> list(ahead(abs, [-1, 2, -3], threads=2))
    [1, 2, 3]
    """
    pool = ThreadPoolExecutor(threads)
    try:
        waiting = deque(pool.submit(work, item) for item in items[:threads])
        for index in range(len(items)):
            result = waiting.popleft().result()
            if index + threads < len(items):
                waiting.append(pool.submit(work, items[index + threads]))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
