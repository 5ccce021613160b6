"""From bytes to network inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

Transform = Callable[[Tensor], Tensor]


def normalise(
    mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0, dtype: torch.dtype = torch.float32
) -> Transform:
    """The map (v/255 − mean)/std: uint8 images `[B, H, W, C]` or `[B, H, W]` → floats `[B, C, H, W]`.

    Statistics are of each channel, or one for all, on the scale 0..1.

    >>> normalise(0.5, 0.25)(torch.full((1, 1, 1, 2), 255, dtype=torch.uint8)).flatten()
    tensor([2.0000, 2.0000])
    """

    @cache  # copying constants to a GPU for each batch would wait for it each time
    def constants(device: torch.device) -> tuple[Tensor, Tensor]:
        scale = 1 / (255 * torch.tensor(std, dtype=torch.float64))
        shift = -255 * torch.tensor(mean, dtype=torch.float64) * scale
        return scale.to(device, dtype), shift.to(device, dtype)

    def transform(images: Tensor) -> Tensor:
        channels_last = images.unsqueeze(-1) if images.dim() == 3 else images
        scale, shift = constants(images.device)
        return torch.addcmul(shift, channels_last.to(dtype), scale).permute(0, 3, 1, 2)

    return transform
