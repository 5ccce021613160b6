"""Sizes, channels, types and mistakes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from corruption_images import photographs

from forde.corruptions import NAMES, SEVERITIES, corrupt, corrupt_all, preset_for
from forde.errors import FordeError


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (17, 30), (64, 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_size_and_channel_count_works(name: str, size: tuple[int, int], channels: int) -> None:
    images = photographs(3, *size, channels)
    for severity in SEVERITIES:
        result = corrupt(images, name, severity)
        assert result.shape == images.shape and result.dtype == np.uint8


@pytest.mark.parametrize("name", NAMES)
def test_large_images_work(name: str) -> None:
    images = photographs(2, 140, 130)
    assert corrupt(images, name, 4).shape == images.shape


@pytest.mark.parametrize("preset", ["cifar", "tiny", "imagenet"])
def test_every_preset_works_at_every_size(preset: str) -> None:
    for side in (8, 72):
        images = photographs(1, side, side)
        for name, _, result in corrupt_all(images, severities=[5], preset=preset, workers=1):
            assert result.shape == images.shape, name


@pytest.mark.parametrize("name", NAMES)
def test_grey_images_come_with_or_without_a_channel_axis(name: str) -> None:
    images = photographs(3, channels=1)
    assert (corrupt(images[..., 0], name, 3) == corrupt(images, name, 3)[..., 0]).all()


@pytest.mark.parametrize(
    "name", ["defocus_blur", "zoom_blur", "contrast", "pixelate", "jpeg_compression", "brightness"]
)
def test_grey_is_what_equal_channels_give(name: str) -> None:
    grey = photographs(3, channels=1)
    colour = corrupt(np.repeat(grey, 3, -1), name, 3)
    assert (colour == corrupt(grey, name, 3)).all()


def test_saturate_leaves_grey_images_alone_and_tints_grey_pixels() -> None:
    grey = photographs(2, channels=1)
    for severity in SEVERITIES:
        assert (corrupt(grey, "saturate", severity) == grey).all()
    red, green, blue = corrupt(np.full((1, 8, 8, 3), 200, np.uint8), "saturate", 5)[0, 0, 0]
    assert red == 200 and green == blue == 160


@pytest.mark.parametrize("name", NAMES)
def test_arrays_give_arrays_and_tensors_tensors(name: str) -> None:
    images = photographs(2)
    array, tensor = corrupt(images, name, 2), corrupt(torch.from_numpy(images), name, 2)
    assert isinstance(array, np.ndarray) and isinstance(tensor, torch.Tensor)
    assert (tensor.numpy() == array).all()
    images.flags.writeable = False  # as a memory-mapped file is
    assert (corrupt(images, name, 2) == array).all()
    strided = torch.from_numpy(images.copy()).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    assert (corrupt(strided, name, 2).numpy() == array).all()


def test_the_preset_follows_the_size() -> None:
    assert [preset_for(side, side) for side in (47, 48, 127, 128)] == ["cifar", "tiny", "tiny", "imagenet"]
    images = photographs(2)
    assert (corrupt(images, "contrast", 1) == corrupt(images, "contrast", 1, preset="cifar")).all()
    assert (corrupt(images, "contrast", 1) != corrupt(images, "contrast", 1, preset="tiny")).any()


IMAGES = np.zeros((2, 32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: corrupt(IMAGES, "gausian_noise", 1), "did you mean 'gaussian_noise'"),
        (lambda: corrupt(IMAGES, "fog", 1, preset="cifar10"), "did you mean 'cifar'"),
        (lambda: corrupt(IMAGES, "fog", 0), "severity was 0"),
        (lambda: corrupt(IMAGES, "fog", 6), "from 1 to 5"),
        (lambda: corrupt(IMAGES, "fog", 2.5), "severity was 2.5"),  # type: ignore[arg-type]
        (lambda: corrupt(IMAGES, "fog", True), "severity was True"),
        (lambda: corrupt(IMAGES / 255.0, "fog", 1), "images were float64"),
        (lambda: corrupt(torch.zeros(2, 32, 32, 3), "fog", 1), "images were torch.float32"),
        (lambda: corrupt(IMAGES.tolist(), "fog", 1), "images were a list"),
        (lambda: corrupt(IMAGES[0], "fog", 1), r"images\[None\]"),
        (lambda: corrupt(IMAGES.transpose(0, 3, 1, 2), "fog", 1), r"give \(N, H, W, 3\)"),
        (lambda: corrupt(IMAGES[:, :7], "fog", 1), "at least 8"),
        (lambda: corrupt(IMAGES, "fog", 1, seed=-1), "seed was -1"),
        (lambda: corrupt(IMAGES, "fog", 1, seed=0.5), "seed was 0.5"),  # type: ignore[arg-type]
        (lambda: corrupt(IMAGES, "fog", 1, ids=[0]), "2 here"),
        (lambda: corrupt(IMAGES, "fog", 1, ids=[0, -1]), "at least 0"),
        (lambda: corrupt(IMAGES, "fog", 1, ids=[0.0, 1.0]), "one integer"),  # type: ignore[list-item]
        (lambda: corrupt_all(IMAGES, ["fogg"]), "did you mean 'fog'"),
        (lambda: corrupt_all(IMAGES, workers=0), "workers was 0"),
    ],
)
def test_mistakes_are_explained(call: object, message: str) -> None:
    with pytest.raises(FordeError, match=message):
        call()  # type: ignore[operator]
