"""Which functions draw and apply each corruption."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from forde.corruptions.blur import apply_defocus_blur, apply_gaussian_blur
from forde.corruptions.colour import apply_brightness, apply_contrast, apply_saturate
from forde.corruptions.constants import NAMES
from forde.corruptions.elastic import apply_elastic_transform, draw_elastic
from forde.corruptions.fog import apply_fog, draw_fog
from forde.corruptions.frost import apply_frost, draw_frost
from forde.corruptions.glass import apply_glass_blur, draw_glass
from forde.corruptions.jpeg import apply_jpeg_compression
from forde.corruptions.motion import apply_motion_blur, draw_motion
from forde.corruptions.noise import (
    apply_gaussian_noise,
    apply_impulse_noise,
    apply_shot_noise,
    apply_speckle_noise,
    draw_bits,
    draw_normal,
)
from forde.corruptions.pixelate import apply_pixelate
from forde.corruptions.snow import apply_snow, draw_snow
from forde.corruptions.spatter import apply_spatter, draw_spatter
from forde.corruptions.tensors import Draws, no_draws
from forde.corruptions.zoom import apply_zoom_blur


class Corruption(NamedTuple):
    """The two halves of a corruption.

    draw(n, (H, W, C), constants, rng) -> arrays with n images on their first axis;
    apply(images, draws, constants) -> images: pure, every image on its own, images uint8 (N, H, W, C).
    """

    draw: Callable[..., Draws]
    apply: Callable[..., Tensor]


def by_luminance(apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A colour corruption made to take grey images too: grey to RGB, corrupted, back to its luminance."""

    def either(images: Tensor, *args: object, **options: object) -> Tensor:
        if images.shape[-1] == 3:
            return apply(images, *args, **options)
        colour = apply(images.expand(*images.shape[:-1], 3).contiguous(), *args, **options).int()
        weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32, device=images.device)
        grey = (colour * weights).sum(-1, keepdim=True, dtype=torch.int32)
        return ((grey + (1 << 15)) >> 16).to(torch.uint8)

    return either


REGISTRY: dict[str, Corruption] = {
    "gaussian_noise": Corruption(draw_normal, apply_gaussian_noise),
    "shot_noise": Corruption(draw_bits, apply_shot_noise),
    "impulse_noise": Corruption(draw_bits, apply_impulse_noise),
    "defocus_blur": Corruption(no_draws, apply_defocus_blur),
    "glass_blur": Corruption(draw_glass, apply_glass_blur),
    "motion_blur": Corruption(draw_motion, apply_motion_blur),
    "zoom_blur": Corruption(no_draws, apply_zoom_blur),
    "snow": Corruption(draw_snow, apply_snow),
    "frost": Corruption(draw_frost, by_luminance(apply_frost)),
    "fog": Corruption(draw_fog, apply_fog),
    "brightness": Corruption(no_draws, apply_brightness),
    "contrast": Corruption(no_draws, apply_contrast),
    "elastic_transform": Corruption(draw_elastic, apply_elastic_transform),
    "pixelate": Corruption(no_draws, apply_pixelate),
    "jpeg_compression": Corruption(no_draws, apply_jpeg_compression),
    "speckle_noise": Corruption(draw_normal, apply_speckle_noise),
    "gaussian_blur": Corruption(no_draws, apply_gaussian_blur),
    "spatter": Corruption(draw_spatter, by_luminance(apply_spatter)),
    "saturate": Corruption(no_draws, apply_saturate),
}

assert tuple(REGISTRY) == NAMES  # the order is part of the seeds
