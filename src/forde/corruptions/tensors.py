"""The few tensor helpers every corruption uses: layout, host-to-device transfer and truncation to levels."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Draws = dict[str, np.ndarray]
"""Random numbers of one corruption; every array has the images on its first axis."""

EPSILON = 1e-4
"""Added (in levels) before truncating a float32 sum: the share of values it can push over a level is 0.01 %,
and without it an exact integer that float32 computes a little low, a flat white area say, loses a level."""


def to_levels(values: Tensor) -> Tensor:
    """Float levels to uint8: clip to [0, 255] (in place), then truncate as the published scripts do.

    The detour over int32 is three times faster on a CPU than converting to uint8 directly.
    """
    return values.clamp_(0, 255).to(torch.int32).to(torch.uint8)


def pick(mask: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """chosen where mask, else other, for integer tensors: other + (chosen - other) · mask, exact modulo 2^bits.

    torch.where branches on every element, which on a CPU takes twenty times as long on a random mask.
    """
    return (chosen - other).mul_(mask).add_(other)


def zero_below(values: Tensor, threshold: float) -> Tensor:
    """values where they are ≥ threshold, else 0, for float64 tensors."""
    return functional.threshold(values, math.nextafter(threshold, -math.inf), 0.0)


def cache_parts(images: Tensor) -> Iterable[Tensor]:
    """The batch in parts whose float64 copies stay in a CPU core's cache; on other devices in one part."""
    if images.device.type != "cpu":
        return (images,)
    return images.split(max(1, 2**17 // images[0].numel()))


def divide(values: Tensor, divisor: float) -> Tensor:
    """values / divisor in place, correctly rounded on every device (a GPU multiplies by 1 / a number instead)."""
    return values.div_(values.new_full((1,), divisor))


def to_planes(images: Tensor) -> Tensor:
    """(N, H, W, C) -> contiguous (N, C, H, W), where an (N, 1, H, W) layer broadcasts in long inner loops."""
    return images.permute(0, 3, 1, 2).contiguous()


def from_planes(planes: Tensor) -> Tensor:
    """(N, C, H, W) -> contiguous (N, H, W, C)."""
    return torch.stack(planes.unbind(1), -1)


def like(images: Tensor, array: np.ndarray, dtype: torch.dtype | None = None) -> Tensor:
    """A host array as a tensor on the images' device; torch takes contiguous writable arrays only."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(images.device, dtype, non_blocking=True)


def no_draws(n: int, shape: tuple[int, int, int], constants: tuple[float, ...], rng: np.random.Generator) -> Draws:
    """The draw of a deterministic corruption: nothing."""
    return {}
