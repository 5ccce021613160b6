"""Gaussian and defocus blur: the two blurs that need no random numbers and use one small kernel."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.gaussian import gaussian_levels
from forde.corruptions.shifts import padded, shifted
from forde.corruptions.tensors import Draws, cache_parts, to_levels


def apply_gaussian_blur(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Gaussian filter of width σ, edges replicated; images (N, H, W, C) uint8."""
    (sigma,) = constants
    return gaussian_levels(images, sigma)


def apply_defocus_blur(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Correlation with a slightly blurred disk, border reflect-101; images (N, H, W, C) uint8.

    Taps of equal weight are summed first (exact in float32, the levels are small integers) and multiplied
    once: a disk has many taps and few weights. The weighted sum needs float64: means of five pixels are often
    integers, and which side of them the slightly blurred disk ends on shows after truncation.
    """
    return torch.cat([_correlate_disk(part, *constants) for part in cache_parts(images)])


def _correlate_disk(images: Tensor, radius: float, alias: float) -> Tensor:
    n, height, width, channels = images.shape
    groups, reach = _defocus_groups(radius, alias)
    buffer = padded(images, "mirror", (reach, reach), (reach, reach))
    wide = buffer.shape[2] * channels
    flat, span = buffer.view(n, -1), height * wide
    total = flat.new_zeros((n, span), dtype=torch.float64)
    ring = flat.new_empty((n, span))
    for weight, taps in groups:
        (row, column), *others = taps
        ring.copy_(shifted(flat, row, column * channels, wide, span))
        for row, column in others:
            ring.add_(shifted(flat, row, column * channels, wide, span))
        total.add_(ring.double(), alpha=weight)
    return to_levels(total).view(n, height, -1, channels)[:, :, :width]


@lru_cache(maxsize=32)
def _defocus_groups(radius: float, alias: float) -> tuple[list[tuple[float, list[tuple[int, int]]]], int]:
    """The kernel as (weight, [(row, column), ...]) with rows and columns from 0, and its reach.

    Weights below 1e-9 are left out: 255 of them change no level.
    """
    kernel = defocus_kernel(radius, alias)
    used = np.argwhere(kernel > 1e-9)
    centre = kernel.shape[0] // 2
    reach = int(np.abs(used - centre).max())
    groups: dict[float, list[tuple[int, int]]] = {}
    for row, column in used:
        groups.setdefault(float(kernel[row, column]), []).append(
            (int(row) - centre + reach, int(column) - centre + reach)
        )
    return sorted(groups.items()), reach


def defocus_kernel(radius: float, alias: float) -> np.ndarray:
    """The disk x² + y² ≤ r², divided by its sum and smoothed by a small Gaussian, float32 (17, 17) or larger.

    >>> defocus_kernel(1.5, 0.1).shape
    (17, 17)
    """
    half, smoothing = (8, 1) if radius <= 8 else (math.floor(radius), 2)
    axis = np.arange(-half, half + 1)
    disk = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    taps = np.exp(-(np.arange(-smoothing, smoothing + 1) ** 2) / (2 * alias**2))
    weights = (taps / taps.sum()).astype(np.float32)[smoothing:]
    return _smooth_lines(_smooth_lines(disk, weights).T, weights).T


def _smooth_lines(grid: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Symmetric filter along the rows of a float32 grid, weights of distance 0, 1, ...; border reflect-101.

    Products are added as fused multiply-adds do, rounded once: the kernel's sum decides whether a flat area
    keeps its level, and it comes out above 1 only with the rounding of the published kernels.
    """
    reach = len(weights) - 1
    wide = np.pad(grid, ((0, 0), (reach, reach)), mode="reflect")
    total = grid * weights[0]
    for distance, weight in enumerate(weights[1:], 1):
        before, after = reach - distance, reach + distance
        pair = wide[:, before : before + grid.shape[1]] + wide[:, after : after + grid.shape[1]]
        total = (total + pair.astype(np.float64) * np.float64(weight)).astype(np.float32)
    return total
