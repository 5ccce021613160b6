"""Squared distances between members, exact for near-identical members and lean in memory."""

from __future__ import annotations

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
        members, places, size = live.shape
        q = live.new_zeros(members, len(frozen), places)
        for part in _slices(size, frozen):
            for i in range(members):
                q[i] += (live[i, :, part] - frozen[:, :, part]).square().sum(-1)
        return q

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        live, frozen = ctx.saved_tensors
        weight = 2 * gradients[0]
        result = torch.zeros_like(live)
        for part in _slices(live.shape[-1], frozen):
            for i in range(len(live)):
                difference = live[i, :, part] - frozen[:, :, part]
                result[i, :, part] = torch.einsum("jb,jbd->bd", weight[i], difference)
        return result, None


def _slices(size: int, frozen: Tensor) -> list[slice]:
    width = max(1, CHUNK // max(1, frozen.shape[0] * frozen.shape[1]))
    return [slice(start, start + width) for start in range(0, size, width)]
