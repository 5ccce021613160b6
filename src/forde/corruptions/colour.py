"""Brightness, saturation and contrast: pointwise changes of colour."""

from __future__ import annotations

import torch
from torch import Tensor

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws, cache_parts, divide, from_planes, pick, to_levels, to_planes


def apply_contrast(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """(x - m) c + m, m = the mean of each image and channel; images (N, H, W, C) uint8."""
    (factor,) = constants
    planes = to_planes(images)
    mean = planes.sum((2, 3), keepdim=True).double() / (planes[0, 0].numel() * 255)
    scaled = divide(planes.double(), 255).sub_(mean).mul_(factor).add_(mean)
    return from_planes(to_levels(scaled.mul_(255)))


def apply_brightness(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """V ← clip(V + c) in HSV; images (N, H, W, C) uint8, a grey image is its own V."""
    (added,) = constants
    if images.shape[-1] == 1:
        return to_levels(divide(images.double(), 255).add_(added).mul_(255))
    return torch.cat([_in_hsv(part, (1.0, 0.0), added) for part in cache_parts(images)])


def apply_saturate(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """S ← clip(S a + b) in HSV; images (N, H, W, C) uint8, a grey image has no saturation to change.

    Grey pixels of a colour image have hue 0, which is red, so an offset b > 0 tints them red.
    """
    if images.shape[-1] == 1:
        return images.clone()
    factor, offset = constants
    return torch.cat([_in_hsv(part, (factor, offset), 0.0) for part in cache_parts(images)])


def _in_hsv(images: Tensor, saturation: tuple[float, float], added: float) -> Tensor:
    """RGB → HSV, S ← clip(S a + b), V ← clip(V + c), → RGB; images (N, H, W, 3) uint8.

    HSV keeps the order of a pixel's channels: the largest becomes V, the smallest V (1 - S) and the middle
    one V (1 - S f) or V (1 - S (1 - f)), f the position of the hue within its sixth of the circle. So one
    computation per pixel and role replaces one per channel. It follows the textbook formulas operation by
    operation in float64: results are often exact integers, where truncation shows a different rounding.
    """
    red, green, blue = to_planes(images).unbind(1)
    most, least = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    value = divide(most.double(), 255)
    spread = value - divide(least.double(), 255)
    s = (spread / value).nan_to_num_(0.0)
    if saturation != (1.0, 0.0):
        s.mul_(saturation[0]).add_(saturation[1]).clamp_(0, 1)
    if added:
        value.add_(added).clamp_(max=1)

    # Hue in sixths: (g - b) / spread, 2 + (b - r) / spread or 4 + (r - g) / spread as red, green or blue leads;
    # of two leaders the later one counts, and a grey pixel has hue 0.
    blue_leads, green_leads = blue == most, green == most
    first = divide(pick(blue_leads, red, pick(green_leads, blue, green)).double(), 255)
    second = divide(pick(blue_leads, green, pick(green_leads, red, blue)).double(), 255)
    start = torch.maximum(blue_leads.to(torch.uint8).mul_(4), green_leads.to(torch.uint8).mul_(2))
    hue = first.sub_(second).div_(spread).add_(start.double()).nan_to_num_(0.0)
    hue = divide(hue, 6)
    hue = hue.sub_(hue.floor()).mul_(6)
    sixth = hue.floor()
    f = hue.sub_(sixth)
    rising = 1 - sixth.mul_(0.5).sub_(sixth.floor()).mul_(2)  # 1 in the even sixths, else 0
    f = rising.sub_(f).abs_()

    middle = to_levels((1 - f.mul_(s)).mul_(value).mul_(255))
    smallest = to_levels((1 - s).mul_(value).mul_(255))
    largest = to_levels(value.mul_(255))
    new_red = pick(red == most, largest, pick(red == least, smallest, middle))
    new_green = pick(green == least, smallest, pick(green_leads, largest, middle))
    new_blue = pick(blue == least, smallest, pick(blue_leads, largest, middle))
    return torch.stack([new_red, new_green, new_blue], -1)
