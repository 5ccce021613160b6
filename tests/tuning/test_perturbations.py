"""What validation samples go through: nothing that runs are tested under, and only what it says."""

from __future__ import annotations

import numpy as np
import pytest

from forde.corruptions import NAMES
from forde.errors import FordeError
from forde.evaluation.runs.table_shifts import SHIFTS
from forde.tuning.perturbations import IMAGE_PERTURBATIONS, LEVELS, perturbed
from forde.tuning.row_perturbations import ROW_PERTURBATIONS, perturbed_rows


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Smooth pictures, so that a small move is a small change."""
    y, x = np.mgrid[:32, :32] / 31
    waves = [np.sin(3 * x + 2 * y + phase) for phase in np.linspace(0, 3, 12)]
    return (127 + 100 * np.stack([np.stack([w, w**2, -w], -1) for w in waves])).astype(np.uint8)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((400, 5)).astype(np.float32)


def test_none_is_a_test_corruption() -> None:
    assert not {*IMAGE_PERTURBATIONS} & {*NAMES} and not {*ROW_PERTURBATIONS} & {*SHIFTS}
    assert len(NAMES) == 19


@pytest.mark.parametrize("name", IMAGE_PERTURBATIONS)
def test_images_change_more_at_the_second_level_and_always_alike(images: np.ndarray, name: str) -> None:
    before = images.copy()
    found = [perturbed(images, name, level, seed=3) for level in LEVELS]
    far = [np.abs(each.astype(float) - images).mean() for each in found]
    assert 0 < far[0] < far[1] < 120 and np.array_equal(images, before)
    assert all(each.shape == images.shape and each.dtype == np.uint8 for each in found)
    assert np.array_equal(found[1], perturbed(images, name, 2, seed=3))
    grey = perturbed(images[:2, :8, :8, :1], name, 2)
    assert grey.shape == (2, 8, 8, 1)


def test_moves_are_by_so_many_pixels_in_any_direction(images: np.ndarray) -> None:
    """A dot is found where the formula puts it."""
    dots = np.zeros((50, 33, 33, 1), np.uint8)
    dots[:, 16, 16] = 255
    at = np.array([np.unravel_index(one.argmax(), (33, 33)) for one in perturbed(dots, "translation", 2)])
    assert np.abs(np.hypot(*(at - 16).T) - 0.16 * 33).max() < 1 and len(np.unique(at, axis=0)) > 10
    turned = perturbed(dots, "rotation", 2)
    assert (turned[:, 16, 16] > 200).all()


def test_cutout_leaves_the_rest(images: np.ndarray) -> None:
    changed = (perturbed(images, "cutout", 1) != images).any(-1)
    assert (changed.sum((1, 2)) <= 64).all() and changed.any((1, 2)).all()


@pytest.mark.parametrize("name", ROW_PERTURBATIONS)
def test_rows_change_more_at_the_second_level_and_always_alike(rows: np.ndarray, name: str) -> None:
    found = [perturbed_rows(rows, name, level, seed=1) for level in LEVELS]
    far = [np.abs(each - rows).mean() for each in found]
    assert 0 < far[0] < far[1] and all(each.dtype == np.float32 and each.shape == rows.shape for each in found)
    assert np.array_equal(found[0], perturbed_rows(rows, name, 1, seed=1))


def test_an_exchanged_value_comes_from_its_own_column(rows: np.ndarray) -> None:
    found = perturbed_rows(rows, "exchanged", 2)
    assert all(np.isin(found[:, column], rows[:, column]).all() for column in range(rows.shape[1]))
    assert 0.2 < (found != rows).mean() < 0.35


def test_unknown_names_are_answered_with_the_nearest(images: np.ndarray, rows: np.ndarray) -> None:
    with pytest.raises(FordeError, match="did you mean 'solarise'"):
        perturbed(images, "solarize", 1)
    with pytest.raises(FordeError, match="did you mean 'offset'"):
        perturbed_rows(rows, "ofset", 1)
