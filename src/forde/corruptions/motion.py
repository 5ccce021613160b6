"""Motion blur: a one-sided Gaussian along a random direction, also the smear of snowflakes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.shifts import padded, shifted
from forde.corruptions.tensors import Draws


def draw_motion(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Directions in degrees, uniform in (-45, 45), float64 (N,)."""
    return {"angle": rng.uniform(-45, 45, n)}


def apply_motion_blur(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Motion blur along draws["angle"]; images (N, H, W, C) uint8."""
    radius, sigma = constants
    return smear(images, draws["angle"], radius, sigma)


def smear(images: Tensor, angle: np.ndarray, radius: float, sigma: float) -> Tensor:
    """⌊Σ_i k_i x[row + ⌈i sin t - ½⌉, column + ⌈i cos t - ½⌉] + 1/514⌋, i = 0 ... 2⌈radius⌉; edges replicated.

    k_i ∝ exp(-i² / 2σ²). 1/514 is what rounding to 16 bits and then cutting to 8 amounts to.
    images (N, H, W, C) uint8, angle (N,) degrees. The batch is sorted by angle: neighbours then share almost
    every offset, and a tap is a handful of contiguous sums instead of one per image.
    """
    n, height, width, channels = images.shape
    weights = _one_sided_weights(radius, sigma)
    order = np.argsort(angle, kind="stable")
    step = np.arange(len(weights))
    # (taps, N) offsets; angles are few, so the host computes them in float64 as the definition does.
    theta = np.deg2rad(angle[order])
    right = np.ceil(step[:, None] * np.cos(theta) - 0.5).astype(np.int64)
    down = np.ceil(step[:, None] * np.sin(theta) - 0.5).astype(np.int64)

    top, left = -min(0, int(down.min())), -min(0, int(right.min()))
    rows, columns = (top, max(0, int(down.max()))), (left, max(0, int(right.max())))
    sorting = torch.from_numpy(order).to(images.device)
    buffer = padded(images.index_select(0, sorting), "edge", rows, columns)
    wide = buffer.shape[2] * channels
    flat, span = buffer.view(n, -1), height * wide
    total = flat.new_full((n, span), 1 / 514)
    for tap, weight in enumerate(weights):
        change = np.flatnonzero(np.diff(right[tap]) | np.diff(down[tap])) + 1
        for start, stop in zip([0, *change], [*change, n], strict=True):
            row, column = top + int(down[tap, start]), left + int(right[tap, start])
            view = shifted(flat[start:stop], row, column * channels, wide, span)
            total[start:stop].add_(view, alpha=weight)
    levels = total.to(torch.int32).to(torch.uint8).view(n, height, -1, channels)[:, :, :width]
    out = torch.empty_like(images)
    out[sorting] = levels
    return out


def _one_sided_weights(radius: float, sigma: float) -> list[float]:
    """k_0, k_1, ... normalised over all 2⌈radius⌉ + 1 taps, without the last ones below 1e-9."""
    weights = [math.exp(-(i * i) / (2 * sigma * sigma)) for i in range(2 * math.ceil(radius) + 1)]
    total = sum(weights)
    return [weight / total for weight in weights if weight / total > 1e-9]
