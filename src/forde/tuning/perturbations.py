"""What validation images go through when a strength is chosen: perturbations that are none of the 19 test corruptions.

A choice made under a test corruption is fitted to it, so these are other transformations. Some belong to a family that
the test has too: uniform noise is no Gaussian, shot, impulse or speckle noise but is noise, and a box blur is a blur.
Each sample draws its own sign, direction or place.

    uniform_noise  u ~ U(−a, a) for each value           translation  by a share of the side, in any direction
    box_blur       mean of k × k pixels                  shear        x + s y, s of either sign
    posterise      n levels                              rotation     by an angle of either sign
    solarise       values above t are inverted           cutout       a grey square
    gamma          255 (v/255)^g, g or 1/g               dead_lines   rows that are black
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from forde.errors import unknown_name

LEVELS = (1, 2)
"""Mild and strong."""


def perturbed(images: np.ndarray, name: str, level: int, *, seed: int = 0) -> np.ndarray:
    """uint8 images `[N, H, W, C]` under one of the `IMAGE_PERTURBATIONS` at level 1 or 2.

    >>> images = np.full((2, 8, 8, 3), 200, np.uint8)
    >>> perturbed(images, "solarise", 2)[0, 0, 0].tolist()
    [55, 55, 55]
    """
    if name not in IMAGE_PERTURBATIONS:
        raise unknown_name("perturbation of images", name, IMAGE_PERTURBATIONS)
    key = np.random.SeedSequence([seed, list(IMAGE_PERTURBATIONS).index(name), level]).generate_state(1)
    drawn = torch.Generator().manual_seed(int(key[0]))
    x = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float()
    found = IMAGE_PERTURBATIONS[name](x, level - 1, drawn)
    return found.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()


def _signs(n: int, drawn: torch.Generator) -> Tensor:
    return torch.randint(2, (n,), generator=drawn).float() * 2 - 1


def _uniform_noise(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    return x + (40.0, 90.0)[level] * (2 * torch.rand(x.shape, generator=drawn) - 1)


def _box_blur(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    size = max(1, round(min(x.shape[2:]) * (0.04, 0.08)[level])) * 2 + 1
    around = F.pad(x, (size // 2,) * 4, mode="replicate")
    return F.avg_pool2d(around, size, stride=1)


def _posterise(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    step = 255 / ((5, 3)[level] - 1)
    return (x / step).round() * step


def _solarise(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    return torch.where(x > (192, 128)[level], 255 - x, x)


def _gamma(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    power = (1.6, 2.5)[level] ** _signs(len(x), drawn)
    return 255 * (x / 255) ** power.view(-1, 1, 1, 1)


def _rotation(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    angle = math.radians((12, 24)[level]) * _signs(len(x), drawn)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return _moved(x, cos, -sin, zero, sin, cos, zero)


def _translation(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    direction = 2 * math.pi * torch.rand(len(x), generator=drawn)
    far = 2 * (0.08, 0.16)[level]  # the side is 2 long in the grid's units
    one, zero = torch.ones_like(direction), torch.zeros_like(direction)
    return _moved(x, one, zero, far * direction.cos(), zero, one, far * direction.sin())


def _shear(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    slope = (0.2, 0.4)[level] * _signs(len(x), drawn)
    one, zero = torch.ones_like(slope), torch.zeros_like(slope)
    return _moved(x, one, slope, zero, zero, one, zero)


def _moved(x: Tensor, *entries: Tensor) -> Tensor:
    """Images under an affine map each, whose first two rows are given; beyond the border its pixels go on."""
    grid = F.affine_grid(torch.stack(entries, -1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _cutout(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    height, width = x.shape[2:]
    h, w = (max(1, round(side * (0.25, 0.45)[level])) for side in (height, width))
    top = torch.randint(height - h + 1, (len(x), 1, 1, 1), generator=drawn)
    left = torch.randint(width - w + 1, (len(x), 1, 1, 1), generator=drawn)
    rows, columns = torch.arange(height).view(1, 1, -1, 1), torch.arange(width).view(1, 1, 1, -1)
    inside = (rows >= top) & (rows < top + h) & (columns >= left) & (columns < left + w)
    return torch.where(inside, 128.0, x)


def _dead_lines(x: Tensor, level: int, drawn: torch.Generator) -> Tensor:
    dead = torch.rand(len(x), 1, x.shape[2], 1, generator=drawn) < (0.1, 0.25)[level]
    return torch.where(dead, 0.0, x)


IMAGE_PERTURBATIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "uniform_noise": _uniform_noise, "box_blur": _box_blur, "posterise": _posterise, "solarise": _solarise,
    "gamma": _gamma, "rotation": _rotation, "translation": _translation, "shear": _shear, "cutout": _cutout,
    "dead_lines": _dead_lines,
}  # fmt: skip
"""By name: float images `[N, C, H, W]` from 0 to 255, level 0 or 1, generator → images that may leave that range."""
