"""Corrupting images: the functions for one corruption at one severity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from forde.corruptions.blocks import Folder, corrupt_rows, prepare, rows_by_block
from forde.corruptions.checks import Images, as_batch, checked_ids, checked_name, constants_for, like_input
from forde.corruptions.registry import REGISTRY
from forde.corruptions.tensors import Draws


def corrupt(
    images: Images,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    preset: str | None = None,
    ids: Sequence[int] | np.ndarray | None = None,
    frost: Folder | None = None,
) -> Images:
    """The images under one of the 19 common corruptions.

    images: uint8, (N, H, W, C) with C = 1 or 3, or grey (N, H, W); sides of at least 8. An array gives an
    array and a tensor a tensor on the same device. name: one of NAMES. severity: 1 to 5. preset: "cifar",
    "tiny" or "imagenet", by default after the size. ids: the images' numbers, by default 0 ... N - 1; give
    them when corrupting a part of a set, so that an image is always corrupted alike. frost: a folder of
    frost photographs.

    >>> import numpy as np
    >>> images = np.full((4, 32, 32, 3), 128, np.uint8)
    >>> noisy = corrupt(images, "gaussian_noise", severity=3, seed=1)
    >>> bool((corrupt(images[2:], "gaussian_noise", 3, seed=1, ids=[2, 3]) == noisy[2:]).all())
    True
    """
    batch = as_batch(images)
    numbers = checked_ids(ids, len(batch))
    work = prepare(batch, name, severity, seed=seed, preset=preset, frost=frost)
    out = torch.empty_like(batch)
    for rows in rows_by_block(numbers, batch):
        out[rows] = corrupt_rows(work, rows, numbers)
    return like_input(out, images)


def draw(
    name: str,
    n: int,
    shape: tuple[int, int, int],
    severity: int,
    generator: np.random.Generator,
    *,
    preset: str | None = None,
) -> Draws:
    """The random numbers a corruption needs for n images of shape (H, W, C); see apply.

    >>> sorted(draw("snow", 2, (32, 32, 3), 1, np.random.default_rng(0)))
    ['angle', 'z']
    """
    return REGISTRY[checked_name(name)].draw(n, shape, constants_for(name, severity, preset, shape[:2]), generator)


def apply(
    images: Images,
    name: str,
    draws: Draws,
    severity: int,
    *,
    preset: str | None = None,
    frost: Folder | None = None,
) -> Images:
    """The images (N, H, W, C) under a corruption with given random numbers: a pure function.

    >>> images = np.full((2, 32, 32, 3), 128, np.uint8)
    >>> draws = {"z": np.zeros((2, 32, 32, 3))}
    >>> bool((apply(images, "gaussian_noise", draws, severity=5) == images).all())
    True
    """
    batch = as_batch(images)
    return like_input(prepare(batch, name, severity, preset=preset, frost=frost).apply(batch, draws), images)
