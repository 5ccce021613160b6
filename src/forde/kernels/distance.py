"""Squared distances on a GPU, from differences that are formed in slices: neither pass holds `[M, M, B, D]`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Numbers held at once while differences are formed (64 MiB in float32)."""


@contextmanager
def in_one_piece() -> Iterator[None]:
    """For a compiler, which forms differences without holding them: no slices inside."""
    global CHUNK  # noqa: PLW0603
    before, CHUNK = CHUNK, 1 << 62
    try:
        yield
    finally:
        CHUNK = before


class InSlices(torch.autograd.Function):
    """q_ijb = ‖live_ib − frozen_jb‖²: `[M, B, D]`, `[M, B, D]` → `[M, M, B]`."""

    @staticmethod
    def forward(ctx: Any, live: Tensor, frozen: Tensor) -> Tensor:
        ctx.save_for_backward(live, frozen)
        q: Tensor | None = None
        for rows, columns in _blocks(live, frozen):
            squares = _differences(live, frozen, rows, columns).square().sum(-1)
            if len(squares) == len(live) and q is None:
                q = squares
                continue
            q = live.new_zeros(len(live), len(frozen), live.shape[1]) if q is None else q
            q[rows] += squares
        assert q is not None
        return q

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        live, frozen = ctx.saved_tensors
        weight = 2 * gradients[0]
        blocks = list(_blocks(live, frozen))
        if len(blocks) == 1:  # one frozen member after another: no tensor larger than the result
            result = weight[:, 0, :, None] * (live - frozen[0])
            for j in range(1, len(frozen)):
                result = result + weight[:, j, :, None] * (live - frozen[j])
            return result, None
        result = torch.zeros_like(live)
        for rows, columns in blocks:
            difference = _differences(live, frozen, rows, columns)
            result[rows, :, columns] = difference.mul_(weight[rows].unsqueeze(-1)).sum(1)
        return result, None


def _differences(live: Tensor, frozen: Tensor, rows: slice, columns: slice) -> Tensor:
    return live[rows, None, :, columns] - frozen[None, :, :, columns]


def _blocks(live: Tensor, frozen: Tensor) -> Iterator[tuple[slice, slice]]:
    """Ranges of live members and of coordinates whose differences with all frozen members fit into a chunk."""
    members, places, size = live.shape
    pairs = max(1, len(frozen) * places)
    width = max(1, min(size, CHUNK // pairs))
    height = max(1, CHUNK // (pairs * width))
    for row in range(0, members, height):
        for column in range(0, size, width):
            yield slice(row, row + height), slice(column, column + width)
