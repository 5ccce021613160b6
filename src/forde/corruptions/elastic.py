"""Elastic transform: a random affine map, then a smooth random displacement of every pixel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from forde.corruptions.constants import Constants
from forde.corruptions.gaussian import smooth_layers
from forde.corruptions.tensors import EPSILON, Draws, from_planes, like, to_levels, to_planes


def draw_elastic(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Uniforms in [0, 1): affine (N, 3, 2) for three points, displacement (N, 2, H, W) for dx and dy."""
    return {
        "affine": rng.random((n, 3, 2)),
        "displacement": rng.random((n, 2, *shape[:2]), dtype=np.float32),
    }


def apply_elastic_transform(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Affine warp (border reflect-101), then displacement by α Gaussian_σ(U(-1, 1)) (border reflect), bilinear.

    images (N, H, W, C) uint8.
    """
    alpha, sigma, jitter = constants
    n, height, width, _ = images.shape
    x = torch.arange(width, device=images.device, dtype=torch.float64)
    y = torch.arange(height, device=images.device, dtype=torch.float64)[:, None]
    a, b, c = like(images, _inverse_affine(draws["affine"], height, width, jitter))[..., None, None].unbind(2)
    planes = to_planes(images).float()
    # grid_sample's two corner conventions are exactly the two borders: reflection about the first and last
    # pixel centre is reflect-101, reflection about the image's outer edge is reflect.
    column, row = ((a * x + c) + b * y).unbind(1)
    planes = _sample(planes, column.mul_(2 / (width - 1)).sub_(1), row.mul_(2 / (height - 1)).sub_(1), True)
    if alpha:
        noise = like(images, draws["displacement"]).double().mul(2).sub_(1).view(2 * n, height, width)
        right, down = smooth_layers(noise, sigma, 3.0, "reflect").view(n, 2, height, width).unbind(1)
        column = right.mul(2 * alpha / width).add_((2 * x + 1) / width - 1)
        row = down.mul(2 * alpha / height).add_((2 * y + 1) / height - 1)
        planes = _sample(planes, column, row, False)
    return from_planes(to_levels(planes.add_(EPSILON)))


def _inverse_affine(u: np.ndarray, height: int, width: int, jitter: float) -> np.ndarray:
    """Output pixel -> source pixel, float64 (N, 2, 3), of the map that moves three points by U(-jitter, jitter)²."""
    centre = np.array([width // 2, height // 2], dtype=np.float64)
    q = min(height, width) // 3
    points = centre + q * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = points + jitter * (2 * u - 1)
    ones = np.ones((*u.shape[:2], 1))
    # rows [x y 1] of the moved points times the unknown (3, 2) map give the original points
    solution = np.linalg.solve(np.concatenate([moved, ones], -1), np.broadcast_to(points, u.shape))
    return np.ascontiguousarray(solution.transpose(0, 2, 1))


def _sample(planes: Tensor, x: Tensor, y: Tensor, aligned: bool) -> Tensor:
    """Bilinear values of float32 (N, C, H, W) planes at x, y (N, H, W) in [-1, 1], border reflected."""
    grid = torch.stack([x.float(), y.float()], -1)
    return functional.grid_sample(planes, grid, padding_mode="reflection", align_corners=aligned)
