"""Pixelate: box-average down to fewer pixels and enlarge them again."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws

_BITS = 22
"""Fixed-point bits of the box weights; 255 · 2^22 still fits an int32."""


def apply_pixelate(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Box resize of both sides to ⌊c · side⌋ and back; images (N, H, W, C) uint8, each pass rounded to uint8."""
    (kept,) = constants
    _, height, width, _ = images.shape
    small = (int(height * kept), int(width * kept))
    down = _box_resize(_box_resize(images, 2, small[1]), 1, small[0])
    return _box_resize(_box_resize(down, 2, width), 1, height)


def _box_resize(images: Tensor, axis: int, size: int) -> Tensor:
    """Box-filter resize of one axis of a uint8 tensor to size, in fixed point."""
    sources, weights = _box_taps(images.shape[axis], size, images.device)
    if len(sources) == 1:
        return images.index_select(axis, sources[0])
    shape = [1] * images.dim()
    shape[axis] = size
    total = images.new_full((1,), 1 << (_BITS - 1), dtype=torch.int32)
    for source, weight in zip(sources, weights, strict=True):
        total = total + images.index_select(axis, source).int() * weight.view(shape)
    return (total >> _BITS).to(torch.uint8)


@lru_cache(maxsize=64)
def _box_taps(old: int, new: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Source indices and fixed-point weights of a box resize, (taps, new) each; unused taps weigh 0.

    Output i is the mean of the pixels whose centres lie within half an output pixel of its own centre.
    """
    scale = old / new
    half = max(scale, 1.0) / 2
    rows = []
    for i in range(new):
        centre = (i + 0.5) * scale
        inside = range(max(0, int(centre - half + 0.5)), min(old, int(centre + half + 0.5)))
        rows.append([k for k in inside if -half < k + 0.5 - centre <= half])
    taps = max(map(len, rows))
    sources = torch.tensor([row + [row[-1]] * (taps - len(row)) for row in rows])
    weights = torch.tensor([[int(0.5 + (1 << _BITS) / len(row))] * len(row) + [0] * (taps - len(row)) for row in rows])
    return sources.T.contiguous().to(device), weights.int().T.contiguous().to(device)
