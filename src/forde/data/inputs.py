"""From bytes to network inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def normaliser(
    mean: Sequence[float], std: Sequence[float], device: torch.device | str, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """The map (v/255 − mean)/std of each channel: bytes `[B, C, H, W]` → floats, as one multiplication and addition.

    >>> to_inputs = normaliser([0.5], [0.25], "cpu", torch.float32)
    >>> round(to_inputs(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item(), 5)
    2.0
    """
    factor = 1 / (255 * torch.tensor(std, dtype=torch.float64))
    scale = factor.to(device, dtype).view(1, -1, 1, 1)
    shift = (-torch.tensor(mean, dtype=torch.float64) * 255 * factor).to(device, dtype).view(1, -1, 1, 1)
    return lambda images: torch.addcmul(shift, images.to(dtype), scale)
