"""What users may give, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from forde.corruptions.constants import CONSTANTS, NAMES, PRESETS, SEVERITIES, Constants, preset_for
from forde.errors import FordeError, unknown_name

Images = TypeVar("Images", np.ndarray, Tensor)


def as_batch(images: np.ndarray | Tensor) -> Tensor:
    """The images as a contiguous (N, H, W, C) uint8 tensor."""
    if not isinstance(images, np.ndarray | Tensor):
        raise FordeError(f"images were a {type(images).__name__}; give a numpy array or a torch tensor of uint8.")
    if images.dtype not in (np.dtype(np.uint8), torch.uint8):
        raise FordeError(
            f"images were {images.dtype}; corruptions are defined on uint8 levels 0 to 255, so convert them."
        )
    shape = tuple(images.shape)
    channels = shape[3] if len(shape) == 4 else 1
    if len(shape) not in (3, 4) or channels not in (1, 3):
        raise FordeError(
            f"images had shape {shape}; give (N, H, W, 3), (N, H, W, 1) or grey (N, H, W), one image as images[None]."
        )
    if min(shape[1:3]) < 8:
        raise FordeError(
            f"images had shape {shape}, which reads as {shape[1]} x {shape[2]} pixels; sides must be at least 8, "
            "and a single image needs a batch axis in front (images[None])."
        )
    batch = (
        torch.from_numpy(np.require(images, requirements=["C", "W"]))
        if isinstance(images, np.ndarray)
        else images.contiguous()
    )
    return batch.view(*shape[:3], channels)


def like_input(out: Tensor, images: Images) -> Images:
    """The result in the type and shape of the input."""
    shaped = out.view(tuple(images.shape))
    return shaped.numpy() if isinstance(images, np.ndarray) else shaped


def constants_for(name: str, severity: int, preset: str | None, size: Sequence[int]) -> Constants:
    """The constants of a corruption for images of size (H, W)."""
    if severity not in SEVERITIES or isinstance(severity, bool):
        raise FordeError(f"severity was {severity!r}; give an integer from 1 to 5.")
    chosen = preset_for(*size) if preset is None else preset
    if chosen not in PRESETS:
        raise unknown_name("preset", chosen, PRESETS)
    return CONSTANTS[chosen][checked_name(name)][int(severity) - 1]


def checked_name(name: str) -> str:
    """The name, if it is one of the 19."""
    if name not in NAMES:
        raise unknown_name("corruption", name, NAMES)
    return name


def checked_seed(seed: int) -> int:
    """The seed, if it is a whole number ≥ 0."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise FordeError(f"seed was {seed!r}; give an integer of at least 0.")
    return int(seed)


def checked_ids(ids: Sequence[int] | np.ndarray | None, n: int) -> np.ndarray:
    """The ids of n images, int64 (n,), by default their positions."""
    if ids is None:
        return np.arange(n)
    numbers = np.asarray(ids)
    if numbers.shape != (n,) or (n and (numbers.dtype.kind not in "iu" or numbers.min() < 0)):
        raise FordeError(
            f"ids had shape {numbers.shape} and type {numbers.dtype}; "
            f"give one integer of at least 0 per image, {n} here."
        )
    return numbers.astype(np.int64)
