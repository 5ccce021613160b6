"""Frost: a random crop of a photograph of ice laid over the image."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws, like

PHOTOS = 5
"""Photographs a texture is chosen from; the published script has a sixth and never uses it."""


def draw_frost(n: int, shape: tuple[int, int, int], constants: Constants, rng: np.random.Generator) -> Draws:
    """Which photograph, int64 (N,), and uniforms in [0, 1) for the crop's row and column, float64 (N, 2)."""
    return {"photo": rng.integers(0, PHOTOS, n), "corner": rng.random((n, 2))}


def apply_frost(images: Tensor, draws: Draws, constants: Constants, textures: tuple[np.ndarray, ...]) -> Tensor:
    """clip(a x + b frost); images (N, H, W, 3) uint8, textures uint8 (rows, columns, 3), chosen modulo their number.

    The crop's first row is uniform in [0, rows - H), its column likewise.
    """
    own, ice, _ = constants
    _, height, width, _ = images.shape
    crops = torch.empty_like(images)
    choice = draws["photo"] % len(textures)
    for number, texture in enumerate(textures):
        chosen = np.flatnonzero(choice == number)
        if not len(chosen):
            continue
        photo = like(images, _at_least(texture, height + 1, width + 1))
        room = np.array(photo.shape[:2]) - (height, width)
        row, column = np.floor(draws["corner"][chosen] * room).astype(np.int64).T
        # All crops of the photograph as one view; indexing it copies the chosen ones.
        windows = photo.view(-1).as_strided(
            (int(room[0]), int(room[1]), height, width * 3), (photo.stride(0), 3, photo.stride(0), 1)
        )
        picked = windows[like(images, row), like(images, column)]
        crops[like(images, chosen)] = picked.view(-1, height, width, 3)
    table = _blend_table(own, ice, images.device)
    index = crops.int().add_(images.int(), alpha=256)
    return table.index_select(0, index.view(-1)).view_as(images)


@lru_cache(maxsize=32)
def _blend_table(own: float, ice: float, device: torch.device) -> Tensor:
    """The level of every pair (image level, frost level), uint8 (65536,); computed in float64 as published."""
    level = np.arange(256.0)
    blend = np.clip(own * level[:, None] + ice * level, 0, 255)
    return torch.from_numpy(blend.astype(np.uint8).reshape(-1)).to(device)


def _at_least(texture: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The texture, mirrored outward where it is smaller than needed (images larger than the photograph)."""
    short = max(0, rows - texture.shape[0]), max(0, columns - texture.shape[1])
    if short == (0, 0):
        return texture
    return np.ascontiguousarray(np.pad(texture, ((0, short[0]), (0, short[1]), (0, 0)), mode="symmetric"))
