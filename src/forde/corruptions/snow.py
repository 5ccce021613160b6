"""Snow: a whitened image under smeared random flakes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.motion import smear
from forde.corruptions.tensors import EPSILON, Draws, from_planes, like, to_levels, to_planes, zero_below
from forde.corruptions.zoom import zoom_matrix


def draw_snow(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Standard normals z (N, H, W) for the flakes and directions in degrees (N,), uniform in (-135, -45)."""
    return {
        "z": rng.standard_normal((n, *shape[:2]), dtype=np.float32),
        "angle": rng.uniform(-135, -45, n),
    }


def apply_snow(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """clip(y + L + L turned by 180°), y = a x + (1 - a) max(x, 1.5 luminance + 0.5); images (N, H, W, C) uint8.

    L is the flake layer: normals, magnified about the centre, thresholded and smeared along one direction.
    """
    own = constants[-1]
    flakes = flake_layer(like(images, draws["z"]), draws["angle"], constants).float()
    flakes += flakes.flip(1, 2)
    planes = to_planes(images).float()
    white = luminance(planes).mul_(1.5).add_(255 / 2)
    # max(x, w) = x + max(0, w - x): one pass fewer than mixing two whole images.
    snowy = (white - planes).clamp_(min=0).mul_(1 - own).add_(planes)
    return from_planes(to_levels(snowy.add_(flakes[:, None]).add_(EPSILON)))


def flake_layer(z: Tensor, angle: np.ndarray, constants: Constants) -> Tensor:
    """The layer of flakes, uint8 (N, H, W), from normals z (N, H, W)."""
    mean, std, zoom, threshold, radius, sigma, _ = constants
    _, height, width = z.shape
    layer = z.double().mul(std).add_(mean)
    if zoom != 1:
        rows = torch.from_numpy(zoom_matrix(height, zoom)).to(z.device)
        columns = torch.from_numpy(zoom_matrix(width, zoom)).to(z.device)
        layer = rows @ (layer @ columns.T)
    layer = to_levels(zero_below(layer, threshold).mul_(255))
    return smear(layer[..., None], angle, radius, sigma)[..., 0]


def luminance(planes: Tensor) -> Tensor:
    """.299 R + .587 G + .114 B of (N, C, H, W) float planes, (N, 1, H, W); a grey image is its own."""
    if planes.shape[1] == 1:
        return planes.clone()
    red, green, blue = planes.split(1, 1)
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)
