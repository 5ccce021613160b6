"""Separable Gaussian filters: shifted sums for images, matrices for single-channel layers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.tensors import cache_parts, divide, to_levels


def gaussian_weights(sigma: float, truncate: float = 4.0) -> list[float]:
    """Weights of the taps at distance 0, 1, ..., r: exp(-d² / 2σ²), normalised over both sides, r = ⌊tσ + ½⌋.

    >>> [round(w, 3) for w in gaussian_weights(0.4)]
    [0.919, 0.04, 0.0]
    """
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return [1.0]
    # numpy's exponential and sum, not torch's: they differ in the last bit, which gaussian_filter explains
    distance = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 / (sigma * sigma) * distance**2)
    return (weights / weights.sum())[radius:].tolist()


def gaussian_filter(images: Tensor, sigma: float) -> Tensor:
    """Gaussian filter of (N, H, W, C) float64 images, edges replicated, (N, H, ≥ W, C): columns past W are junk.

    Rows come first, then columns. The order of a sum, centre tap and then symmetric pairs from the outermost
    inward, with separate multiplications and additions, is that of the common CPU libraries: where an area is
    flat the result is a level that truncation may or may not lower by one, and only the same rounding decides
    alike.
    """
    weights = gaussian_weights(sigma)
    radius = len(weights) - 1
    if radius == 0:
        return images
    n, height, width, channels = images.shape

    tall = images.new_empty((n, height + 2 * radius, width * channels))
    rows = images.reshape(n, height, width * channels)
    tall[:, radius:-radius] = rows
    tall[:, :radius] = rows[:, :1]
    tall[:, -radius:] = rows[:, -1:]
    row = width * channels
    smooth = _symmetric_sum(tall.view(n, -1), weights, row, height * row).view(n, height, width, channels)

    # All rows of all images as one line. The sums that straddle two rows are dropped, by the caller, at the end.
    used, beyond = n * height * (width + 2 * radius) * channels, 2 * radius * channels
    line = images.new_zeros((1, used + beyond))
    wide = line[0, :used].view(n, height, width + 2 * radius, channels)
    wide[:, :, radius:-radius] = smooth
    wide[:, :, :radius] = smooth[:, :, :1]
    wide[:, :, -radius:] = smooth[:, :, -1:]
    return _symmetric_sum(line, weights, channels, used).view(wide.shape)


def gaussian_levels(images: Tensor, sigma: float) -> Tensor:
    """Gaussian filter of (N, H, W, C) uint8 images, truncated to uint8."""
    width = images.shape[2]
    smooth = (gaussian_filter(divide(part.double(), 255), sigma).mul_(255) for part in cache_parts(images))
    return torch.cat([to_levels(part)[:, :, :width] for part in smooth])


def _symmetric_sum(flat: Tensor, weights: list[float], stride: int, span: int) -> Tensor:
    """Σ_d w_|d| flat[:, (r + d)·stride : ... + span] over d = -r..r; flat (N, ≥ span + 2 r stride)."""
    radius = len(weights) - 1
    total = flat[:, radius * stride : radius * stride + span] * weights[0]
    pair = torch.empty_like(total)
    for distance in range(radius, 0, -1):
        before, after = (radius - distance) * stride, (radius + distance) * stride
        torch.add(flat[:, before : before + span], flat[:, after : after + span], out=pair)
        total.add_(pair.mul_(weights[distance]))
    return total


@lru_cache(maxsize=64)
def gaussian_matrix(length: int, sigma: float, truncate: float, border: str, device: torch.device) -> Tensor:
    """The (length, length) float64 matrix of a 1-D Gaussian filter; border "nearest" or "reflect" (cba|abc|cba)."""
    weights = gaussian_weights(sigma, truncate)
    radius = len(weights) - 1
    matrix = torch.zeros(length, length, dtype=torch.float64)
    target = torch.arange(length)
    for offset in range(-radius, radius + 1):
        source = target + offset
        if border == "nearest":
            source = source.clamp(0, length - 1)
        else:
            source = source.remainder(2 * length)
            source = torch.minimum(source, 2 * length - 1 - source)
        matrix.index_put_((target, source), matrix.new_tensor(weights[abs(offset)]), accumulate=True)
    return matrix.to(device)


def smooth_layers(layers: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Gaussian filter of (N, H, W) layers in float64, as two matrix products."""
    _, height, width = layers.shape
    rows = gaussian_matrix(height, sigma, truncate, border, layers.device)
    columns = gaussian_matrix(width, sigma, truncate, border, layers.device)
    return rows @ (layers.double() @ columns.T)
