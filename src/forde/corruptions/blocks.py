"""Seeds and the walk over blocks of images.

Random numbers come from numpy on the host, one generator per fixed block of image ids, on every device. So
what happens to an image depends on (seed, name, severity, id) and its size, and on nothing else: not on the
batch it came in, its place there, the number of workers or the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.checks import checked_seed, constants_for
from forde.corruptions.constants import NAMES
from forde.corruptions.registry import REGISTRY
from forde.corruptions.tensors import Draws
from forde.corruptions.textures import frost_folder, load_textures

Folder = str | os.PathLike[str]


class Work(NamedTuple):
    """One corruption of one set of images, its options checked and looked up."""

    images: Tensor
    entropy: tuple[int, int, int]
    draw: Callable[..., Draws]
    apply: Callable[..., Tensor]


def prepare(
    images: Tensor, name: str, severity: int, *, seed: int = 0, preset: str | None, frost: Folder | None
) -> Work:
    """Check and look up what corrupting images (N, H, W, C) needs."""
    height, width, channels = images.shape[1:]
    constants = constants_for(name, severity, preset, (height, width))
    draw = partial(REGISTRY[name].draw, shape=(height, width, channels), constants=constants)
    options = {"textures": load_textures(frost_folder(frost), constants[2])} if name == "frost" else {}
    apply = partial(REGISTRY[name].apply, constants=constants, **options)
    return Work(images, (checked_seed(seed), NAMES.index(name), int(severity)), draw, apply)


def block_size(images: Tensor) -> int:
    """Images per generator: 256 up to 32 x 32, fewer of larger ones, so that a block's numbers stay small."""
    return max(1, min(256, 2**18 // (images.shape[1] * images.shape[2])))


def rows_by_block(numbers: np.ndarray, images: Tensor, together: int | None = None) -> list[np.ndarray]:
    """The positions of the images with these ids, in groups of whole blocks.

    By default one block on a CPU, which fits a core's cache, and eight on a GPU, which wants many images at once.
    """
    block = numbers // block_size(images)
    order = np.argsort(block, kind="stable")
    if not len(order):
        return []
    starts = np.flatnonzero(np.diff(block[order])) + 1
    if together is None:
        together = 1 if images.device.type == "cpu" else 8
    return np.split(order, starts[together - 1 :: together])


def corrupt_rows(work: Work, rows: np.ndarray, numbers: np.ndarray) -> Tensor:
    """The corrupted images at rows, which are sorted by block; numbers are the ids of all images."""
    size = block_size(work.images)
    blocks, starts = np.unique(numbers[rows] // size, return_index=True)
    parts = []
    for block, members in zip(blocks, np.split(numbers[rows] % size, starts[1:]), strict=True):
        rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([*work.entropy, int(block)])))
        draws = work.draw(size, rng=rng)
        whole = len(members) == size and bool((members == np.arange(size)).all())
        parts.append(draws if whole else {key: value[members] for key, value in draws.items()})
    draws = parts[0]
    if len(parts) > 1:
        draws = {key: np.concatenate([part[key] for part in parts]) for key in draws}
    return work.apply(work.images[torch.from_numpy(rows).to(work.images.device)], draws)
