"""An image's corruption depends on (seed, name, severity, id) and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from corruption_images import DETERMINISTIC, photographs

from forde.corruptions import NAMES, SEVERITIES, apply, corrupt, corrupt_all, draw

N = 300  # more than one block of 256


@pytest.mark.parametrize("name", NAMES)
def test_batch_size_and_order_do_not_matter(name: str) -> None:
    images = photographs(N)
    whole = corrupt(images, name, 3, seed=5)
    assert (corrupt(images, name, 3, seed=5) == whole).all()
    for rows in (np.arange(250, 263), np.array([299, 0, 256, 17, 255]), np.arange(N)[::-1]):
        assert (corrupt(images[rows], name, 3, seed=5, ids=rows) == whole[rows]).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DETERMINISTIC])
def test_every_part_of_the_key_counts(name: str) -> None:
    images = np.repeat(photographs(1), 3, 0)
    base = corrupt(images, name, 3, seed=1)
    assert (base[0] != base[1]).any() and (base[1] != base[2]).any()
    assert (corrupt(images, name, 3, seed=2) != base).any((1, 2, 3)).all()
    assert (corrupt(images, name, 3, seed=1, ids=[7, 8, 9]) != base).any((1, 2, 3)).all()


def test_severities_and_names_have_streams_of_their_own() -> None:
    images = np.full((1, 32, 32, 3), 128, np.uint8)
    # Noise of twice the strength from the same stream would be perfectly correlated.
    noise = [corrupt(images, "gaussian_noise", s).astype(float).ravel() for s in (1, 2)]
    noise.append(corrupt(images, "speckle_noise", 1).astype(float).ravel())
    assert np.abs(np.corrcoef(noise) - np.eye(3)).max() < 0.1


def test_repeated_ids_are_corrupted_alike() -> None:
    images = np.repeat(photographs(1), 3, 0)
    first, second, third = corrupt(images, "snow", 4, ids=[5, 5, 6])
    assert (first == second).all() and (first != third).any()


def test_many_workers_give_what_one_call_gives() -> None:
    images = photographs(N)
    threads = torch.get_num_threads()
    names = ("shot_noise", "motion_blur", "elastic_transform")
    seen = []
    for name, severity, result in corrupt_all(images, names, (1, 5), seed=3, workers=3):
        assert (result == corrupt(images, name, severity, seed=3)).all()
        seen.append((name, severity))
    assert seen == [(name, severity) for name in names for severity in (1, 5)]
    assert torch.get_num_threads() == threads


def test_corrupt_all_can_be_left_early() -> None:
    sets = corrupt_all(photographs(4), workers=2)
    assert next(sets)[:2] == ("gaussian_noise", 1)
    sets.close()


@pytest.mark.parametrize("name", NAMES)
def test_apply_is_pure_and_does_what_corrupt_does(name: str) -> None:
    images = photographs(256)
    for severity in SEVERITIES[::2]:
        entropy = np.random.SeedSequence([4, NAMES.index(name), severity, 0])
        generator = np.random.Generator(np.random.SFC64(entropy))
        draws = draw(name, 256, (32, 32, 3), severity, generator)
        # In float64 an operation on the draws could work in place on the caller's array.
        draws = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in draws.items()}
        before, clean = {key: value.copy() for key, value in draws.items()}, images.copy()
        result = apply(images, name, draws, severity)
        assert all((draws[key] == before[key]).all() for key in draws) and (images == clean).all()
        expected = corrupt(images, name, severity, seed=4).astype(int)
        assert np.abs(result.astype(int) - expected).max() <= 1
        assert (result != expected).mean() < 1e-4


def test_no_images_give_no_images() -> None:
    assert corrupt(np.zeros((0, 32, 32, 3), np.uint8), "fog", 1).shape == (0, 32, 32, 3)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_devices_agree(name: str) -> None:
    images = photographs(N)
    for severity in SEVERITIES:
        host = corrupt(images, name, severity).astype(int)
        device = corrupt(torch.from_numpy(images).cuda(), name, severity).cpu().numpy()
        assert np.abs(host - device).max() <= 1
        assert (host != device).mean() <= 1e-3
