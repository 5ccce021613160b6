"""Making a forward pass again, as it was: `memory="low"` does so after the exchange instead of keeping its graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forde.random_state import RandomState, get_random_state, set_random_state
from forde.step.python_state import Watch
from forde.step.records import Batch


@dataclass(frozen=True)
class Start:
    """Where a forward pass began: batch, buffers and random numbers."""

    batch: Batch
    buffers: list[Tensor]
    random: RandomState
    sources: Sequence[Any]
    watch: Watch | None
    """Notices what the pass changes besides tensors; None where that is known."""


def beginning(
    batch: Batch, buffers: Collection[Tensor], sources: Sequence[Any] = (), watch: Watch | None = None
) -> Start:
    """Of a forward pass that is made now."""
    state = get_random_state(batch.x.device, sources)
    return Start(batch, [buffer.clone() for buffer in buffers], state, sources, watch)


@contextmanager
def rewound(start: Start, buffers: Collection[Tensor]) -> Iterator[None]:
    """Inside, random numbers are those from then, and buffers move from where they were to where they are now.

    >>> batch, buffer = torch.zeros(2), torch.zeros(1)
    >>> start = beginning(Batch(batch, batch), [buffer])
    >>> first, _ = torch.rand(3), buffer.add_(1)
    >>> with rewound(start, [buffer]):
    ...     second, _ = torch.rand(3), buffer.add_(1)
    >>> torch.equal(first, second), buffer
    (True, tensor([1.]))
    """
    now = get_random_state(start.batch.x.device, start.sources)
    with torch.no_grad():
        for buffer, value in zip(buffers, start.buffers, strict=True):
            buffer.copy_(value)
    set_random_state(start.random, start.sources)
    try:
        yield
    finally:
        set_random_state(now, start.sources)
