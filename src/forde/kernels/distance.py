"""Squared distances between members, exact for near-identical members and lean in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forde.torch_private import weighted_differences

CHUNK = 1 << 24
"""Numbers held at once while differences are formed (64 MiB in float32)."""


def squared_distances(live: Tensor, frozen: Tensor | None = None) -> Tensor:
    """q_ijb = ‖live_ib − frozen_jb‖²: `[M, B, D]`, `[M, B, D]` → `[M, M, B]`; gradients flow to `live` only.

    Formed from differences: where members nearly coincide the bandwidth is about 1e-12, and the usual expansion
    ‖a‖² + ‖b‖² − 2⟨a, b⟩ would amplify its rounding by 1e12. Neither pass holds more than a slice of `[M, M, B, D]`.

    Args:
        frozen: left out, the same numbers as `live`.

    >>> squared_distances(torch.tensor([[[0.0]], [[3.0]]]), torch.tensor([[[0.0]], [[1.0]]])).squeeze(-1)
    tensor([[0., 1.],
            [9., 4.]])
    """
    result: Tensor
    if live.device.type != "cpu":
        result = _SquaredDistances.apply(live, live.detach() if frozen is None else frozen.detach())
    elif frozen is None and live.shape[-1] >= WIDE:
        result = _AmongThemselves.apply(live, None)
    else:
        places = live.transpose(0, 1), (live if frozen is None else frozen).detach().transpose(0, 1)
        result = torch.cdist(*places, compute_mode="donot_use_mm_for_euclid_dist").square().permute(1, 2, 0)
    return result


WIDE = 128
"""From here on a loop over members is faster on a CPU than torch's own function (at 768 half as long)."""
IN_CACHE = 1 << 19
"""Numbers of one slice of the loop (2 MiB in float32)."""


def squared_distances_under(form: Tensor, z: Tensor) -> Tensor:
    """q_ijb = (z_ib − z_jb)ᵀ S (z_ib − z_jb), S symmetric `[D, D]`: `[M, B, D]` → `[M, M, B]`; on a CPU.

    The gradient is made of the same Sz as the distance. So one product per member does for both, where a root R of
    S = RRᵀ asks for two, zR and that of the gradient with Rᵀ.

    >>> squared_distances_under(torch.tensor([[2.0]]), torch.tensor([[[0.0]], [[3.0]]])).squeeze(-1)
    tensor([[ 0., 18.],
            [18.,  0.]])
    """
    result: Tensor = _AmongThemselves.apply(z, form)
    return result


class _AmongThemselves(torch.autograd.Function):
    """On a CPU: each pair once, and torch's loop for the gradient, which holds no differences."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, form: Tensor | None) -> Tensor:
        mapped = z
        if form is not None:
            # Differences of near-identical members are exact, those of their products are not.
            z = z - z[0]
            mapped = torch.stack([z[0], *(member @ form for member in z[1:])])
        ctx.save_for_backward(mapped)
        members, places, size = z.shape
        q = z.new_zeros(members, members, places)
        at_once = max(1, IN_CACHE // (members * size))
        for first, i in product(range(0, places, at_once), range(members - 1)):
            some = slice(first, first + at_once)
            difference = z[i + 1 :, some] - z[i, some]
            if form is None:
                squares = torch.linalg.vector_norm(difference, dim=-1).square_()  # in one pass, unlike a product
            else:
                other = mapped[i + 1 :, some] - mapped[i, some]
                squares = torch.linalg.vecdot(difference, other).clamp_min_(0)  # products may round to less
            q[i, i + 1 :, some] = squares
        return q.add_(q.transpose(0, 1).clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mapped,) = ctx.saved_tensors
        places, weight = mapped.transpose(0, 1).contiguous(), (2 * gradients[0]).permute(2, 0, 1).contiguous()
        return weighted_differences(weight, places).transpose(0, 1), None


@contextmanager
def in_one_piece() -> Iterator[None]:
    """For a compiler, which forms differences without holding them: no slices inside."""
    global CHUNK  # noqa: PLW0603
    before, CHUNK = CHUNK, 1 << 62
    try:
        yield
    finally:
        CHUNK = before


class _SquaredDistances(torch.autograd.Function):
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
