"""Single operations against slow, direct statements of their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from corruption_images import photographs

from forde.corruptions import CONSTANTS, SEVERITIES, apply, corrupt, draw
from forde.corruptions.edges import canny, capped_distance, equalise
from forde.corruptions.fog import height_map, map_side
from forde.corruptions.gaussian import gaussian_filter, gaussian_levels, smooth_layers
from forde.corruptions.motion import smear
from forde.corruptions.noise import _shot_probabilities
from forde.corruptions.shifts import padded
from forde.corruptions.spatter import water_mask


def tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images)


@pytest.mark.parametrize("side", [8, 64])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_is_the_loop_over_pixels(severity: int, side: int) -> None:
    sigma, reach, sweeps = CONSTANTS["imagenet"]["glass_blur"][severity - 1]
    d = int(reach)
    images = photographs(2, side, side)
    draws = draw("glass_blur", 2, images.shape[1:], severity, np.random.default_rng(0), preset="imagenet")
    moved = gaussian_levels(tensor(images), sigma).numpy()
    for image, shifts in zip(moved, draws["shifts"], strict=True):
        for sweep in range(int(sweeps)):
            for h in range(side - d, d, -1):
                for w in range(side - d, d, -1):
                    dx, dy = shifts[sweep, h - d - 1, w - d - 1]
                    image[h, w] = image[h + dy, w + dx]
    expected = gaussian_levels(tensor(moved), sigma).numpy()
    assert (apply(images, "glass_blur", draws, severity, preset="imagenet") == expected).all()


def test_motion_blur_is_its_sum_over_taps() -> None:
    images = photographs(12, 20, 14)
    angle = np.linspace(-180, 180, 12, endpoint=False) + 0.1
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 2.5**2))
    expected = np.zeros(images.shape)
    for number, (image, degrees) in enumerate(zip(images, angle, strict=True)):
        t = math.radians(degrees)
        for i, weight in enumerate(weights / weights.sum()):
            rows = np.clip(np.arange(20) + math.ceil(i * math.sin(t) - 0.5), 0, 19)
            columns = np.clip(np.arange(14) + math.ceil(i * math.cos(t) - 0.5), 0, 13)
            expected[number] += weight * image[rows][:, columns]
    ours = smear(tensor(images), angle, 6, 2.5).numpy().astype(int)
    difference = np.abs(ours - np.floor(expected + 1 / 514))
    assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


@pytest.mark.parametrize("name", ["motion_blur", "defocus_blur", "elastic_transform", "pixelate"])
def test_flat_areas_keep_their_level(name: str) -> None:
    levels = np.arange(256, dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (256, 32, 32, 3)).copy()
    for severity in SEVERITIES:
        assert (corrupt(images, name, severity) == images).all()


def test_gaussian_filters_agree_with_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    images = photographs(2, 24, 19).astype(np.float64)
    for sigma in (0.05, 0.4, 1.0, 3.0):
        expected = ndimage.gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest")
        np.testing.assert_array_equal(gaussian_filter(tensor(images), sigma)[:, :, :19].numpy(), expected)
    expected = ndimage.gaussian_filter(images[..., 0], (0, 6.4, 6.4), mode="reflect", truncate=3)
    ours = smooth_layers(tensor(images[..., 0]), 6.4, 3.0, "reflect").numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize(("border", "numpy_mode"), [("mirror", "reflect"), ("edge", "edge")])
def test_borders_of_any_width(border: str, numpy_mode: str) -> None:
    images = photographs(2, 8, 9)
    expected = np.pad(images, ((0, 0), (9, 2), (0, 20), (0, 0)), mode=numpy_mode)
    np.testing.assert_array_equal(padded(tensor(images), border, (9, 2), (0, 20))[:, :-1].numpy(), expected)


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (31, 50), (64, 64)])
@pytest.mark.parametrize("quality", [7, 40, 80])
def test_jpeg_is_bit_exact_with_libjpeg_turbo_at_any_size(size: tuple[int, int], quality: int) -> None:
    image_module, features = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.features")
    if not features.check_feature("libjpeg_turbo"):
        pytest.skip("this Pillow was built with another JPEG library")
    from io import BytesIO

    from forde.corruptions.jpeg import apply_jpeg_compression

    images = np.concatenate([photographs(8, *size), np.random.default_rng(0).integers(0, 256, (2, *size, 3), np.uint8)])
    ours = apply_jpeg_compression(tensor(images), {}, (quality,)).numpy()
    for image, result in zip(images, ours, strict=True):
        buffer = BytesIO()
        image_module.fromarray(image).save(buffer, "JPEG", quality=quality)
        assert (np.asarray(image_module.open(buffer)) == result).all()


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (31, 50), (140, 140)])
@pytest.mark.parametrize("kept", [0.95, 0.65, 0.25])
def test_pixelate_is_the_box_filter_of_pillow(size: tuple[int, int], kept: float) -> None:
    image_module = pytest.importorskip("PIL.Image")
    from forde.corruptions.pixelate import apply_pixelate

    images = photographs(3, *size)
    for image, result in zip(images, apply_pixelate(tensor(images), {}, (kept,)).numpy(), strict=True):
        full = image_module.fromarray(image)
        small = full.resize((int(size[1] * kept), int(size[0] * kept)), image_module.BOX)
        assert (np.asarray(small.resize(full.size, image_module.BOX)) == result).all()


@pytest.mark.parametrize("side", [8, 32, 60])
def test_water_is_what_opencv_makes_of_it(side: int) -> None:
    cv2 = pytest.importorskip("cv2")
    z = torch.from_numpy(np.random.default_rng(side).standard_normal((100, side, side)))
    layer = smooth_layers(z * 0.3 + 0.65, 1.0)
    layer[layer < 0.69] = 0
    masks = water_mask(layer, 0.5).numpy()
    kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    for depth, mask in zip((layer * 255).int().numpy().astype(np.uint8), masks, strict=True):
        distance = cv2.distanceTransform(255 - cv2.Canny(depth, 50, 150), cv2.DIST_L2, 5)
        relief = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
        wet = depth * cv2.blur(cv2.filter2D(relief, cv2.CV_8U, kernel), (3, 3)).astype(np.float32)
        np.testing.assert_allclose(mask, wet / max(wet.max(), 1) * 0.5, atol=1e-6)


def test_spatter_without_a_drop_changes_nothing() -> None:
    images = photographs(3, 8, 8)
    for severity in SEVERITIES:
        result = apply(images, "spatter", {"z": np.full((3, 8, 8), -5.0)}, severity)
        assert (result == images).all()


def test_distances_without_an_edge_are_the_cap() -> None:
    assert (capped_distance(torch.zeros(2, 9, 12, dtype=torch.bool), 20) == 20 * 65536).all()
    assert not canny(torch.full((2, 9, 12), 7, dtype=torch.uint8), 50, 150).any()
    assert (equalise(torch.full((2, 9, 12), 7, dtype=torch.int32), 21) == 7).all()


def test_distances_are_shortest_chamfer_paths() -> None:
    edges = torch.zeros(1, 40, 30, dtype=torch.bool)
    edges[0, 12, 9] = edges[0, 30, 22] = True
    y, x = np.mgrid[:40, :30]
    expected = np.full((40, 30), 20 * 65536)
    for row, column in ((12, 9), (30, 22)):
        long = np.maximum(abs(y - row), abs(x - column))
        short = np.minimum(abs(y - row), abs(x - column))
        wide = short * 143976 + (long - 2 * short) * 65536
        steep = (long - short) * 143976 + (2 * short - long) * 91750
        expected = np.minimum(expected, np.where(long >= 2 * short, wide, steep))
    np.testing.assert_array_equal(capped_distance(edges, 20)[0].numpy(), expected)


def test_fog_covers_the_image_and_is_cropped() -> None:
    assert [map_side(*size) for size in ((8, 8), (28, 28), (17, 33), (224, 224))] == [8, 32, 64, 256]
    u = torch.from_numpy(np.random.default_rng(0).random((3, 32 * 32 - 1)))
    heights = height_map(u, 32, 3.0)
    assert heights.shape == (3, 32, 32)
    assert (heights.amin((1, 2)) == 0).all() and (heights.amax((1, 2)) == 1).all()
    black = np.zeros((2, 28, 20, 3), np.uint8)
    assert (corrupt(black, "fog", 5) == 0).all()  # scaled by the largest value of the image, here 0


def test_shot_noise_table_is_a_poisson_distribution() -> None:
    probabilities = _shot_probabilities(50.0)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-12)
    assert probabilities[0, 0] == 1
    rate = 50 * 100 / 255
    none, twenty = math.exp(-rate), math.exp(20 * math.log(rate) - rate - math.lgamma(21))
    np.testing.assert_allclose(probabilities[100, [0, int(20 / 50 * 255)]], [none, twenty], rtol=1e-9)


def test_shot_noise_follows_its_table() -> None:
    images = np.full((200, 32, 32, 3), 100, np.uint8)
    counts = np.bincount(corrupt(images, "shot_noise", 5).ravel(), minlength=256)
    expected = _shot_probabilities(50.0)[100] * images.size
    used = expected > 5
    chi = ((counts - expected)[used] ** 2 / expected[used]).sum()
    assert chi < used.sum() + 6 * math.sqrt(2 * used.sum())
    assert counts[~used].sum() <= expected[~used].sum() + 6 * math.sqrt(expected[~used].sum() + 1)


def test_impulse_noise_replaces_the_stated_share() -> None:
    images = np.full((300, 32, 32, 3), 100, np.uint8)
    for severity, (amount,) in zip(SEVERITIES, CONSTANTS["cifar"]["impulse_noise"], strict=True):
        result = corrupt(images, "impulse_noise", severity)
        tolerance = 6 * math.sqrt(amount / images.size)
        for level in (0, 255):
            assert abs((result == level).mean() - amount / 2) < tolerance
        assert np.isin(result, (0, 100, 255)).all()


MONOTONIC = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "zoom_blur",
    "snow",
    "fog",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "speckle_noise",
    "gaussian_blur",
)


@pytest.mark.parametrize("name", MONOTONIC)
def test_damage_grows_with_severity(name: str) -> None:
    images = photographs(256)
    damage = [np.abs(corrupt(images, name, s).astype(float) - images).mean() for s in SEVERITIES]
    assert damage == sorted(damage) and damage[0] > 0
