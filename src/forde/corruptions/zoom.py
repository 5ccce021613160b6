"""Zoom blur: the mean of an image and its magnified centres, as one sparse matrix."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws, divide, to_levels


def apply_zoom_blur(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """(x + Σ_z zoom(x, z)) / (1 + number of factors); images (N, H, W, C) uint8.

    One sparse matrix computes all means at once. The published script adds zoom after zoom in float32, and
    where the mean is close to a whole level, as in every flat area, its rounding decides the level: those few
    values are added up in the same way.
    """
    n, height, width, channels = images.shape
    pixels = images.view(n, height * width, channels).transpose(0, 1).reshape(height * width, -1).contiguous()
    means = _zoom_operator(height, width, constants, images.device) @ pixels.float()
    unsure = (means - means.round()).abs_() < 5e-4  # more than either sum in float32 can be wrong by
    levels = to_levels(means)
    pixel, column = unsure.nonzero(as_tuple=True)
    for part in torch.arange(len(pixel), device=images.device).split(2**15):
        where = pixel[part], column[part]
        levels[where] = _summed_in_float32(pixels, *where, *_zoom_taps(height, width, constants, images.device))
    return levels.view(height * width, n, channels).transpose(0, 1).reshape(images.shape)


def _summed_in_float32(pixels: Tensor, pixel: Tensor, column: Tensor, sources: Tensor, shares: Tensor) -> Tensor:
    """Levels (K,) at pixel and column (K,) of pixels (H·W, N·C): one zoom after the other, in float32.

    sources and shares (factors, 4, H·W) are those of _zoom_taps.
    """
    unit = (torch.arange(256, dtype=torch.float64) / 255).float().to(pixels.device)
    read = pixels.view(-1)[sources[:, :, pixel] * pixels.shape[1] + column]
    zoomed = (unit[read.int()] * shares[:, :, pixel]).sum(1).float()
    own = unit[pixels[pixel, column].int()]
    total = torch.zeros_like(own)
    for value in zoomed:
        total += value
    return to_levels(divide(own + total, len(zoomed) + 1) * 255)


@lru_cache(maxsize=32)
def _zoom_taps(height: int, width: int, constants: Constants, device: torch.device) -> tuple[Tensor, Tensor]:
    """For every factor and pixel the four pixels it is interpolated from and their shares, (factors, 4, H·W)."""
    step, end = constants
    sources, shares = [], []
    for factor in np.arange(1, end, step):  # whether the end itself is included is left to rounding, as published
        top, bottom, down = zoom_line(height, factor)
        left, right, across = zoom_line(width, factor)
        rows, columns = ((top, 1 - down), (bottom, down)), ((left, 1 - across), (right, across))
        corners = [(np.add.outer(r * width, c), np.outer(p, q)) for r, p in rows for c, q in columns]
        sources.append([source.reshape(-1) for source, _ in corners])
        shares.append([share.reshape(-1) for _, share in corners])
    return torch.from_numpy(np.array(sources)).to(device), torch.from_numpy(np.array(shares)).to(device)


@lru_cache(maxsize=32)
def _zoom_operator(height: int, width: int, constants: Constants, device: torch.device) -> Tensor:
    """The whole corruption as a sparse matrix (H·W, H·W), float32: a dozen entries per row at 32 x 32."""
    sources, shares = _zoom_taps(height, width, constants, torch.device("cpu"))
    pixel = torch.arange(height * width)
    targets = torch.cat([pixel, pixel.expand_as(sources).reshape(-1)])
    indices = torch.stack([targets, torch.cat([pixel, sources.view(-1)])])
    values = torch.cat([torch.ones(len(pixel), dtype=torch.float64), shares.view(-1)]) / (len(sources) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions warn that indices are not checked, asked to or not
        size = (height * width, height * width)
        sparse = torch.sparse_coo_tensor(indices, values, size, check_invariants=False).coalesce()
        return sparse.float().to(device)


def zoom_line(side: int, factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Magnification of a line about its centre: crop ⌈side / z⌉, resize linearly, cut to side.

    Per output pixel its two source pixels and the share of the second, (side,) each. The resize aligns the
    corners of crop and result.
    """
    crop = math.ceil(side / factor)
    enlarged = round(crop * factor)
    position = (np.arange(side) + (enlarged - side) // 2) * ((crop - 1) / (enlarged - 1))
    low = np.minimum(np.floor(position).astype(np.int64), crop - 1)
    first = (side - crop) // 2
    return first + low, first + np.minimum(low + 1, crop - 1), position - low


def zoom_matrix(side: int, factor: float) -> np.ndarray:
    """zoom_line as a matrix, float64 (side, side).

    >>> bool((zoom_matrix(32, 1.01) == np.eye(32)).all())
    True
    """
    low, high, part = zoom_line(side, factor)
    matrix = np.zeros((side, side))
    np.add.at(matrix, (np.arange(side), low), 1 - part)
    np.add.at(matrix, (np.arange(side), high), part)
    return matrix
