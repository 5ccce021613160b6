"""The corruptions against recorded results of the published scripts: levels, given the draws, and statistics."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from forde.corruptions import NAMES, SEVERITIES, apply, corrupt, frost_folder
from forde.corruptions.blur import defocus_kernel
from forde.corruptions.constants import CONSTANTS
from forde.corruptions.textures import load_textures

GOLDEN = Path(os.environ.get("FORDE_GOLDEN", Path(__file__).parents[1] / "data" / "golden")) / "corruptions"

DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)
RECORDED = (
    "gaussian_noise",
    "speckle_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "fog",
    "elastic_transform",
    "spatter",
)
STOCHASTIC = tuple(name for name in NAMES if name not in DETERMINISTIC)
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.cuda))
SEEDS = 4


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    path = GOLDEN / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"golden file {path} is absent")
    with np.load(path) as archive:
        return dict(archive)


def needs_photos(name: str) -> None:
    if name == "frost" and frost_folder() is None:
        pytest.skip("the frost photographs are absent: install imagecorruptions to run this test")


def assert_same_levels(ours: np.ndarray, reference: np.ndarray) -> None:
    """At most one level apart, and apart at all in at most 0.1 % of the values."""
    difference = np.abs(ours.astype(int) - reference.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 1e-3


def on(device: str, images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).to(device)


def test_names_are_in_the_official_order() -> None:
    recorded = golden("golden_corruptions")
    assert tuple(recorded["names"]) == NAMES
    assert tuple(np.array(NAMES)[recorded["is_deterministic"]]) == DETERMINISTIC


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("preset", ["cifar", "tiny"])
@pytest.mark.parametrize("device", DEVICES)
def test_deterministic_corruptions_give_the_recorded_levels(name: str, preset: str, device: str) -> None:
    recorded = golden("golden_corruptions")
    images = recorded["images" if preset == "cifar" else "tiny_image"]
    results = recorded[f"det_{name}" if preset == "cifar" else f"tiny_det_{name}"]
    for severity in SEVERITIES:
        ours = corrupt(on(device, images), name, severity).cpu().numpy()
        assert_same_levels(ours, results[severity - 1].reshape(ours.shape))


def test_jpeg_is_bit_exact() -> None:
    recorded = golden("golden_corruptions")
    for severity in SEVERITIES:
        ours = corrupt(recorded["images"], "jpeg_compression", severity)
        assert (ours == recorded["det_jpeg_compression"][severity - 1]).all()


def recorded_draws(name: str, recorded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if name == "frost":
        photo, *corner = recorded["draw_frost_idx_row_col"].T
        textures = load_textures(frost_folder(), 0.2)
        room = np.array([textures[k].shape[:2] for k in photo]) - 32
        return {"photo": photo, "corner": (np.stack(corner, 1) + 0.5) / room}
    keys = {
        "gaussian_noise": {"z": "noise_z"},
        "speckle_noise": {"z": "noise_z"},
        "glass_blur": {"shifts": "glass_dxdy"},
        "motion_blur": {"angle": "motion_angle_deg"},
        "snow": {"z": "snow_z", "angle": "snow_angle_deg"},
        "fog": {"u": "fog_u"},
        "elastic_transform": {"affine": "elastic_affine_u", "displacement": "elastic_disp_u"},
        "spatter": {"z": "spatter_z"},
    }[name]
    return {ours: recorded[f"draw_{theirs}"] for ours, theirs in keys.items()}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("device", DEVICES)
def test_recorded_draws_give_the_recorded_levels(name: str, device: str) -> None:
    recorded = golden("golden_corruptions")
    needs_photos(name)
    draws = recorded_draws(name, recorded)
    for severity in SEVERITIES:
        ours = apply(on(device, recorded["images"][:4]), name, draws, severity).cpu().numpy()
        assert_same_levels(ours, recorded[f"drawn_{name}"][severity - 1])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_kernels_are_the_recorded_ones(severity: int) -> None:
    ours = defocus_kernel(*CONSTANTS["cifar"]["defocus_blur"][severity - 1])
    np.testing.assert_array_equal(ours, golden("golden_corruptions")[f"kernel_defocus_{severity}"])


def statistics(images: np.ndarray, clean: np.ndarray) -> dict[str, float]:
    levels, difference = images.astype(np.float64), images.astype(np.float64) - clean
    red, green, blue = levels.mean((0, 1, 2))
    return {
        "mean": levels.mean(),
        "std": levels.std(),
        "mad": np.abs(difference).mean(),
        "mean_r": red,
        "mean_g": green,
        "mean_b": blue,
        "psnr": 10 * np.log10(255**2 / (difference**2).mean()),
        "tv_x": np.abs(np.diff(levels, axis=2)).mean(),
        "tv_y": np.abs(np.diff(levels, axis=1)).mean(),
    }


@pytest.mark.parametrize("name", STOCHASTIC)
def test_random_corruptions_have_the_recorded_statistics(name: str) -> None:
    recorded, clean = golden("golden_corruptions"), golden("golden_stat_images")["images"]
    needs_photos(name)
    keys, number = list(recorded["stat_keys"]), NAMES.index(name)
    for severity in SEVERITIES:
        runs = [statistics(corrupt(clean, name, severity, seed=seed), clean) for seed in range(SEEDS)]
        for key in runs[0]:
            ours = np.mean([run[key] for run in runs])
            place = (number, severity - 1, keys.index(key))
            spread = recorded["stat_seed_std"][place] * np.sqrt(1 / 8 + 1 / SEEDS)
            bound = 6 * spread + (0.02 if key == "psnr" else 0.05)
            assert abs(ours - recorded["stat_mean"][place]) <= bound, (severity, key)
