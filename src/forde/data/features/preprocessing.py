"""From images as bytes to what a pretrained network was trained on, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from forde.errors import FordeError, unknown_name

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocessing:
    """Resizing, cropping and normalising: uint8 `[B, H, W, C]` → float32 `[B, C', height, width]`.

        x = (resized/255 − mean)/std,   C' = number of means; a grey image is repeated for all of them

    Images are resized as Pillow does, with a filter as wide as the step between pixels when they become smaller, but
    without rounding to whole levels in between.

    >>> vit = Preprocessing((224, 224), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> vit(torch.zeros(2, 28, 28, 1, dtype=torch.uint8)).shape
    torch.Size([2, 3, 224, 224])
    """

    size: tuple[int, int]
    """Height and width that the network takes."""
    mean: tuple[float, ...]
    """Per channel, on the scale 0..1."""
    std: tuple[float, ...]
    interpolation: Interpolation = "bilinear"
    shorter_side: int | None = None
    """The shorter side is resized to this and the centre is cut out; None: the whole image is resized to `size`."""

    def __post_init__(self) -> None:
        if self.interpolation not in get_args(Interpolation):
            raise unknown_name("interpolation", self.interpolation, get_args(Interpolation))
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise FordeError(
                f"the preprocessing has mean {self.mean} and std {self.std}; give one of each for every channel, "
                "the std above 0."
            )
        if min(self.size) < 1 or (self.shorter_side is not None and self.shorter_side < max(self.size)):
            raise FordeError(
                f"the preprocessing cuts {self.size[0]} x {self.size[1]} pixels out of images whose shorter side is "
                f"{self.shorter_side}; give sizes of at least 1 and a shorter side of at least {max(self.size)}."
            )

    def __call__(self, images: Tensor) -> Tensor:
        check_images(images, len(self.mean))
        planes = images.permute(0, 3, 1, 2).float()
        planes = self._cropped(self._resized(planes)).expand(-1, len(self.mean), -1, -1)
        scale = torch.tensor([1 / (255 * std) for std in self.std], device=images.device)
        shift = torch.tensor([-m / std for m, std in zip(self.mean, self.std, strict=True)], device=images.device)
        return torch.addcmul(shift.view(-1, 1, 1), planes, scale.view(-1, 1, 1))

    def _resized(self, planes: Tensor) -> Tensor:
        height, width = planes.shape[2:]
        target = self.size
        if self.shorter_side is not None:
            shorter = min(height, width)
            target = (height * self.shorter_side // shorter, width * self.shorter_side // shorter)
        if (height, width) == target:
            return planes
        if self.interpolation == "bicubic":
            return F.interpolate(planes, target, mode="bicubic", antialias=True).clamp(0, 255)  # it overshoots at edges
        # Where nothing becomes smaller both filters are the same, and the one without is faster.
        return F.interpolate(planes, target, mode="bilinear", antialias=target[0] < height or target[1] < width)

    def _cropped(self, planes: Tensor) -> Tensor:
        top, left = ((there - wanted) // 2 for there, wanted in zip(planes.shape[2:], self.size, strict=True))
        return planes[..., top : top + self.size[0], left : left + self.size[1]]


def check_images(images: Tensor, channels: int) -> None:
    """Refuse what is not uint8 `[B, H, W, C]` with one channel or as many as the network takes.

    >>> check_images(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), 3)
    Traceback (most recent call last):
    forde.errors.FordeError: the images have shape [2, 3, 32, 32], but [B, H, W, C] with 1 or 3 channels was expected;
    move the channels to the end, as in images.permute(0, 2, 3, 1).
    """
    if images.dtype != torch.uint8:
        kind = str(images.dtype).removeprefix("torch.")
        raise FordeError(f"the images are {kind}, but levels 0..255 as uint8 were expected; convert them.")
    if images.dim() != 4 or images.shape[-1] not in (1, channels):
        hint = "images.permute(0, 2, 3, 1)" if images.dim() == 4 else "images[..., None] for grey ones"
        wanted = "1" if channels == 1 else f"1 or {channels}"
        raise FordeError(
            f"the images have shape {list(images.shape)}, but [B, H, W, C] with {wanted} channels was expected; "
            f"move the channels to the end, as in {hint}."
        )
