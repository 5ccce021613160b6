"""Resizing against Pillow's, on images of decimals, which Pillow does not round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from small_backbones import images

from forde.data.features import Preprocessing

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def by_pillow(pixels: np.ndarray, width: int, height: int, interpolation: str) -> np.ndarray:
    """One image `[H, W, C]` → `[height, width, C]`."""
    planes = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize((width, height), FILTERS[interpolation]))
        for plane in np.moveaxis(pixels, -1, 0)
    ]
    return np.stack(planes, -1)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("side", "size"), [(32, (224, 224)), (64, (24, 24)), (20, (13, 31))])
def test_whole_images_are_resized_as_by_pillow(interpolation: str, side: int, size: tuple[int, int]) -> None:
    data = images(3, side)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)
    found = Preprocessing(size, mean, std, interpolation)(torch.from_numpy(data.images))  # type: ignore[arg-type]
    assert found.shape == (3, 3, *size)
    for one, pixels in zip(found, data.images, strict=True):
        resized = by_pillow(pixels, size[1], size[0], interpolation).clip(0, 255)
        expected = (resized / 255 - mean) / std
        np.testing.assert_allclose(one.permute(1, 2, 0).numpy(), expected, atol=2e-4)


def test_the_centre_is_cut_out_of_images_that_are_not_square() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 40, 60, 3), np.uint8)
    found = Preprocessing((16, 16), (0.0,) * 3, (1.0,) * 3, shorter_side=20)(torch.from_numpy(pixels))
    resized = by_pillow(pixels[0], 30, 20, "bilinear")
    np.testing.assert_allclose(found[0].permute(1, 2, 0).numpy(), resized[2:18, 7:23] / 255, atol=2e-4)


def test_a_grey_image_is_repeated_and_normalised_by_each_channels_numbers() -> None:
    pixels = torch.full((2, 8, 8, 1), 255, dtype=torch.uint8)
    found = Preprocessing((8, 8), (0.0, 0.5, 1.0), (1.0, 0.5, 0.5))(pixels)
    assert found.shape == (2, 3, 8, 8)
    assert torch.allclose(found[0, :, 0, 0], torch.tensor([1.0, 1.0, 0.0]), atol=1e-6)
    one = Preprocessing((4, 4), (0.0,), (1.0,))(pixels)
    assert torch.allclose(one, torch.ones(2, 1, 4, 4), atol=1e-6)
