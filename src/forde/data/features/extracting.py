"""The loop: batches in, features out, with shards written on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from forde.data.features.network import Run
from forde.data.features.pieces import Pieces
from forde.data.features.preprocessing import Preprocessing
from forde.data.features.shards import Rows, Shards
from forde.data.features.sources import Source

SAVE_SECONDS = 30.0
"""Between two shards."""


def never() -> bool:
    """Nobody asks for a stop."""
    return False


def nothing(*_told: int) -> None:
    """Nobody listens."""


@dataclass
class Watcher:
    """Who is told of progress, and may ask for a stop."""

    stop: Callable[[], bool] = never
    passed: Callable[[int, bool], None] = nothing
    """Called after each batch with its size, and whether its features were computed now."""
    saved: Callable[[int], None] = nothing
    """Called after each shard with the number of samples that have passed."""


def inputs_of(preprocessing: Preprocessing, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Bytes are preprocessed on the device; floats are taken for inputs that are ready.

    >>> ready = inputs_of(Preprocessing((8, 8), (0.0,), (1.0,)), torch.device("cpu"))
    >>> ready(torch.zeros(2, 3, 8, 8)).shape, ready(torch.zeros(2, 4, 4, 1, dtype=torch.uint8)).shape
    (torch.Size([2, 3, 8, 8]), torch.Size([2, 1, 8, 8]))
    """

    def inputs(x: Tensor) -> Tensor:
        moved = x.to(device)
        return moved.float() if moved.is_floating_point() else preprocessing(moved)

    return inputs


def extract(
    source: Source,
    run: Run,
    dtype: torch.dtype,
    *,
    shards: Shards | None = None,
    save_seconds: float = SAVE_SECONDS,
    watcher: Watcher | None = None,
) -> Rows | None:
    """Features of all samples, in order; None where a stop was asked for, after all that was computed was saved.

    Without shards nothing is saved on the way. What stands in them is not computed again.
    """
    watcher, pieces = watcher or Watcher(), Pieces(shards)
    position, last = 0, time.monotonic()
    try:
        for x, y in source.batches():
            start, position = position, position + len(y)
            new = not pieces.covered(start, position, source.fingerprint)
            if new:
                if watcher.stop():
                    pieces.save()
                    return None
                features = run(x).to(dtype).cpu()
                pieces.add(start, Rows(features, y.cpu()), source.fingerprint)
                due = time.monotonic() - last >= save_seconds and position != source.n
                if due and pieces.save():
                    last = time.monotonic()
                    watcher.saved(position)
            watcher.passed(len(y), new)
        return pieces.together(position)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell of
            pieces.save()
        raise
