"""Squared distances between members, exact for near-identical members and lean in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Numbers held at once while differences are formed (64 MiB in float32)."""


def squared_distances(live: Tensor, frozen: Tensor) -> Tensor:
    """q_ijb = ‖live_ib − frozen_jb‖²: `[M, B, D]`, `[M, B, D]` → `[M, M, B]`; gradients flow to `live` only.

    Formed from differences: where members nearly coincide the bandwidth is about 1e-12, and the usual expansion
    ‖a‖² + ‖b‖² − 2⟨a, b⟩ would amplify its rounding by 1e12. Neither pass holds more than a slice of `[M, M, B, D]`.

    >>> squared_distances(torch.tensor([[[0.0]], [[3.0]]]), torch.tensor([[[0.0]], [[1.0]]])).squeeze(-1)
    tensor([[0., 1.],
            [9., 4.]])
    """
    result: Tensor = _SquaredDistances.apply(live, frozen.detach())
    return result


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, live: Tensor, frozen: Tensor) -> Tensor:
        ctx.save_for_backward(live, frozen)
        q = live.new_zeros(len(live), len(frozen), live.shape[1])
        for rows, columns in _blocks(live, frozen):
            q[rows] += _differences(live, frozen, rows, columns).square().sum(-1)
        return q

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        live, frozen = ctx.saved_tensors
        weight = 2 * gradients[0]
        result = torch.zeros_like(live)
        for rows, columns in _blocks(live, frozen):
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
