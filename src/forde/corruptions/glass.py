"""Glass blur: blur, move pixels about locally, blur again."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.gaussian import gaussian_levels
from forde.corruptions.tensors import Draws, like


def draw_glass(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Shifts (dx, dy) in {-d, ..., d-1} per sweep and pixel, int8 (N, sweeps, H - 2d, W - 2d, 2).

    Pixel [i, j] of the array is row i + d + 1, column j + d + 1 of the image.
    """
    _, reach, sweeps = constants
    d = int(reach)
    size = (n, int(sweeps), shape[0] - 2 * d, shape[1] - 2 * d, 2)
    return {"shifts": rng.integers(-d, d, size, dtype=np.int8)}


def apply_glass_blur(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Gaussian(σ), sweeps of x[h, w] ← x[h + dy, w + dx], Gaussian(σ); images (N, H, W, C) uint8.

    The published loop means to swap two pixels but copies one onto the other, and the benchmark has that
    effect; so has this function.
    """
    sigma, reach, sweeps = constants
    n, height, width, channels = images.shape
    shifts = like(images, draws["shifts"]).int()
    source = _sweep_sources(shifts[:, 0], height, width, int(reach))
    for sweep in range(1, int(sweeps)):
        source = source.gather(1, _sweep_sources(shifts[:, sweep], height, width, int(reach)))
    pixels = gaussian_levels(images, sigma).view(n, height * width, channels)
    moved = pixels.gather(1, source[..., None].expand(-1, -1, channels)).view_as(images)
    return gaussian_levels(moved, sigma)


def _sweep_sources(shifts: Tensor, height: int, width: int, reach: int) -> Tensor:
    """Where each pixel's value comes from after one sweep, int64 (N, H·W) of flat pixel numbers.

    The sweep visits rows and columns in descending order, so a source with a larger number inside the swept
    window was rewritten before it is read: its own source counts. Following those links to their ends by
    pointer doubling gives every pixel at once what the loop gives one by one.
    """
    n = shifts.shape[0]
    number = torch.arange(height * width, device=shifts.device)
    source = number.repeat(n, 1)
    window = source.view(n, height, width)[:, reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    window += shifts[..., 1] * width + shifts[..., 0]
    if reach == 1:  # shifts are -1 or 0: every source is still unvisited
        return source
    row, column = source // width, source % width
    swept = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    linked = swept & (source > number)
    while bool(linked.any()):
        following = source.gather(1, source)
        still = linked & linked.gather(1, source)
        source = torch.where(linked, following, source)
        linked = still
    return source
