"""Spatter: drops of water or mud."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.edges import box_sum, canny, capped_distance, equalise, reflect
from forde.corruptions.gaussian import smooth_layers
from forde.corruptions.tensors import EPSILON, Draws, from_planes, like, to_levels, to_planes, zero_below

_WATER = (175.0, 238.0, 238.0)
_MUD = (63.0, 42.0, 20.0)
_CAP = 20
"""Distance, in pixels, beyond which a drop's relief is flat."""


def draw_spatter(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Standard normals z (N, H, W)."""
    return {"z": rng.standard_normal((n, *shape[:2]), dtype=np.float32)}


def apply_spatter(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Water: clip(x + m (175, 238, 238)/255); mud: clip(x (1 - m) + m (63, 42, 20)/255); images (N, H, W, 3) uint8."""
    mean, std, sigma, threshold, strength, mud = constants
    layer = smooth_layers(like(images, draws["z"]).double().mul(std).add_(mean), sigma)
    layer = zero_below(layer, threshold)
    planes = to_planes(images).float()
    if mud:
        mask = smooth_layers(layer > threshold, strength)
        mask = zero_below(mask, 0.8).float()[:, None]
        colour = planes.new_tensor(_MUD).view(1, 3, 1, 1)
        planes = planes.mul_(1 - mask).add_(mask * colour)
    else:
        colour = planes.new_tensor(_WATER).view(1, 3, 1, 1)
        planes = planes.add_(water_mask(layer, strength)[:, None] * colour)
    return from_planes(to_levels(planes.add_(EPSILON)))


def water_mask(layer: Tensor, strength: float) -> Tensor:
    """How much water each pixel shows, float32 (N, H, W), from thresholded layers (N, H, W) ≥ 0.

    Distances from the outlines of the drops, embossed, times the depth of the layer, scaled so that the
    largest is strength. A layer without a drop gives zeros (where the published script divides 0 by 0).
    """
    # A layer may exceed 1; the published cast to 8 bits then wraps around, and so does this one.
    depth = (layer * 255).to(torch.int32).to(torch.uint8)
    distance = box_sum(capped_distance(canny(depth, 50, 150), _CAP))
    # The sum of nine is exact; the product with the rounded 1/9 decides what truncation sees.
    mean = distance.double().mul_(2.0**-16).mul_(1 / 9).int()
    relief = reflect(equalise(mean, _CAP + 1))
    embossed = (
        relief[:, 1:-1, 1:-1]
        + relief[:, 1:-1, 2:]
        + relief[:, 2:, 1:-1]
        + 2 * relief[:, 2:, 2:]
        - relief[:, 1:-1, :-2]
        - relief[:, :-2, 1:-1]
        - 2 * relief[:, :-2, :-2]
    ).clamp_(0, 255)
    mask = box_sum(embossed).div_(9).round_().mul_(depth)
    largest = mask.amax((1, 2), keepdim=True).clamp_(min=1)
    return mask.div_(largest).mul_(strength)
