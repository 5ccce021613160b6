"""Fog: a fractal height map added to the image."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws, from_planes, like, to_levels, to_planes


def map_side(height: int, width: int) -> int:
    """Side of the height map: the smallest power of two that covers the image.

    >>> map_side(28, 28), map_side(64, 48)
    (32, 64)
    """
    return 1 << (max(height, width) - 1).bit_length()


def draw_fog(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Uniforms in [0, 1), float32 (N, side² - 1): per level k² centres, k² row and k² column mid-points."""
    side = map_side(*shape[:2])
    return {"u": rng.random((n, side * side - 1), dtype=np.float32)}


def apply_fog(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """(x + a h) M / (M + a), M = the image's largest value, h = the height map; images (N, H, W, C) uint8."""
    amplitude, decay = constants
    n, height, width, _ = images.shape
    side = map_side(height, width)
    heights = height_map(like(images, draws["u"]), side, decay)[:, :height, :width]
    largest = images.view(n, -1).amax(1).view(n, 1, 1, 1).float()
    planes = to_planes(images).float()
    planes += heights.mul(255 * amplitude).float()[:, None]
    return from_planes(to_levels(planes.mul_(largest / (largest + 255 * amplitude))))


def height_map(u: Tensor, side: int, decay: float) -> Tensor:
    """Diamond-square on a torus, scaled to [0, 1], float64 (N, side, side), from uniforms u (N, side² - 1).

    Each level puts a centre into every square and a mid-point onto every edge, the mean of four neighbours
    plus w·U(-w, w); then the squares halve and w is divided by decay. It starts from one corner 0, w = 100.
    """
    n = u.shape[0]
    uniforms = u.double().mul(2).sub_(1)
    corners = uniforms.new_zeros((n, 1, 1))
    wobble, used = 100.0, 0
    while (k := corners.shape[1]) < side:
        noise = uniforms[:, used : used + 3 * k * k].view(n, 3, k, k) * wobble**2
        used += 3 * k * k
        right, below = corners.roll(-1, 2), corners.roll(-1, 1)
        centres = (corners + right + below + right.roll(-1, 1)).div_(4).add_(noise[:, 0])
        in_row = (corners + right + centres + centres.roll(1, 1)).div_(4).add_(noise[:, 1])
        in_column = (corners + below + centres + centres.roll(1, 2)).div_(4).add_(noise[:, 2])
        finer = corners.new_empty((n, 2 * k, 2 * k))
        finer[:, ::2, ::2], finer[:, ::2, 1::2] = corners, in_row
        finer[:, 1::2, ::2], finer[:, 1::2, 1::2] = in_column, centres
        corners, wobble = finer, wobble / decay
    corners -= corners.amin((1, 2), keepdim=True)
    return corners.div_(corners.amax((1, 2), keepdim=True))
