"""Gaussian, speckle, shot and impulse noise: every value of every channel is disturbed on its own."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws, like, pick, to_levels


def draw_normal(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Standard normals z (N, H, W, C)."""
    return {"z": rng.standard_normal((n, *shape), dtype=np.float32)}


def apply_gaussian_noise(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """x + σ z, with x in [0, 1]; images (N, H, W, C) uint8."""
    (sigma,) = constants
    z = like(images, draws["z"])
    return to_levels(torch.add(images.to(z.dtype), z, alpha=255 * sigma))


def apply_speckle_noise(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """x + x σ z, with x in [0, 1]; images (N, H, W, C) uint8."""
    (sigma,) = constants
    z = like(images, draws["z"])
    levels = images.to(z.dtype)
    return to_levels(torch.addcmul(levels, levels, z, value=sigma))


def draw_bits(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """32 random bits per value, as int32 (N, H, W, C)."""
    values = n * math.prod(shape)
    # Whole 64-bit words are what the bit generator makes; asking it for int32 costs almost three times as much.
    words = rng.integers(0, 2**64, (values + 1) // 2, dtype=np.uint64)
    return {"bits": words.view(np.int32)[:values].reshape(n, *shape)}


def apply_impulse_noise(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Each value becomes 0 or 255, each with probability amount / 2; images (N, H, W, C) uint8."""
    (amount,) = constants
    bits = like(images, draws["bits"])
    reach = round(amount * 2**31)
    kept, salt = bits >= -(2**31) + reach, bits >= 2**31 - reach
    return (images | salt.to(torch.uint8).neg_()).mul_(kept)  # -1 is 255 in 8 bits


def apply_shot_noise(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Poisson(c x) / c, with x in [0, 1]; images (N, H, W, C) uint8.

    A level is one of 256 and so is the result, so one table of conditional probabilities P(out | in)
    describes the noise, and Walker's alias method samples it: the top 8 bits choose a column, the lowest 23
    decide between that column and its alias.
    """
    (photons,) = constants
    table = like(images, _shot_table(photons))
    bits = like(images, draws["bits"])
    column = (bits >> 24).add_(128)
    entry = table.index_select(0, torch.add(column, images.int(), alpha=256).view(-1)).view_as(bits)
    keep = (bits & 0x7FFFFF) < (entry >> 8)
    return pick(keep, column.to(torch.uint8), (entry & 0xFF).to(torch.uint8))


@lru_cache(maxsize=32)
def _shot_table(photons: float) -> np.ndarray:
    """Alias tables of all 256 levels, int32 (65536,): entry [256 in + column] = threshold · 2^8 + alias.

    The threshold of a column that keeps everything, 2^23, would not fit; such a column is its own alias, so
    the next smaller threshold does as well.
    """
    probabilities = _shot_probabilities(photons)
    table = np.empty((256, 256), np.int32)
    for level in range(256):
        share, alias = _alias_columns(probabilities[level])
        threshold = np.minimum(np.round(share * 2**23), 2**23 - 1).astype(np.int32)
        table[level] = threshold << 8 | alias
    return table.reshape(-1)


def _shot_probabilities(photons: float) -> np.ndarray:
    """P(out level | in level) of clip(Poisson(c x) / c) truncated to a level, float64 (256, 256)."""
    most = int(photons + 12 * math.sqrt(photons) + 30)  # the neglected tail is below 1e-20
    counts = np.arange(most + 1)
    log_factorial = np.array([math.lgamma(count + 1) for count in counts])
    rate = photons * np.arange(256)[:, None] / 255
    log_p = counts * np.log(np.maximum(rate, 1e-300)) - rate - log_factorial
    # At level 0 only a count of 0 is possible, which the 1e-300 above gives without a case of its own.
    out = (np.clip(counts / photons, 0, 1) * 255).astype(np.uint8)
    probabilities = np.zeros((256, 256))
    np.add.at(probabilities.T, out, np.exp(log_p).T)
    return probabilities / probabilities.sum(1, keepdims=True)


def _alias_columns(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's alias method for one distribution (K,): the share each column keeps, and where the rest goes."""
    share = probabilities * len(probabilities)
    alias = np.arange(len(probabilities))
    small = [k for k, value in enumerate(share) if value < 1]
    large = [k for k, value in enumerate(share) if value >= 1]
    while small and large:
        poor, rich = small.pop(), large[-1]
        alias[poor] = rich
        share[rich] -= 1 - share[poor]
        if share[rich] < 1:
            small.append(large.pop())
    return share, alias
