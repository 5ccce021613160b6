"""Making a forward pass again, as it was: `memory="low"` does so after the exchange instead of keeping its graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Start:
    """Where a forward pass began: batch, buffers and random numbers."""

    x: Tensor
    y: Tensor
    buffers: list[Tensor]
    random: list[Tensor]


def beginning(x: Tensor, y: Tensor, buffers: Collection[Tensor]) -> Start:
    """Of a forward pass that is made now."""
    return Start(x, y, [buffer.clone() for buffer in buffers], random_state(x.device))


@contextmanager
def rewound(start: Start, buffers: Collection[Tensor]) -> Iterator[None]:
    """Inside, random numbers are those from then, and buffers move from where they were to where they are now.

    >>> batch, buffer = torch.zeros(2), torch.zeros(1)
    >>> start = beginning(batch, batch, [buffer])
    >>> first, _ = torch.rand(3), buffer.add_(1)
    >>> with rewound(start, [buffer]):
    ...     second, _ = torch.rand(3), buffer.add_(1)
    >>> torch.equal(first, second), buffer
    (True, tensor([1.]))
    """
    now = random_state(start.x.device)
    with torch.no_grad():
        for buffer, value in zip(buffers, start.buffers, strict=True):
            buffer.copy_(value)
    set_random_state(start.random, start.x.device)
    try:
        yield
    finally:
        set_random_state(now, start.x.device)


def random_state(device: torch.device) -> list[Tensor]:
    """State of the random numbers that a forward pass on this device may draw."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_random_state(states: list[Tensor], device: torch.device) -> None:
    """Inverse of `random_state`."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
