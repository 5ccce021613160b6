"""Toy tasks: generators, experiments, figures, and the claims of the paper's figures 2 and 3."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from forde import FordeError
from forde.data import toys
from forde.experiments.toys import (
    CLASSIFICATION,
    METHODS,
    REGRESSION,
    on_rings,
    outside_clusters,
    run_classification,
    run_regression,
    settings_for,
    toy_method,
)
from forde.report.toys import draw_figure_2, draw_figure_3

SEEDS = (0, 1, 2)
BASELINES = METHODS[:5]
FORDE = "forde-identity"


# --- generators


def test_regression_has_exact_clusters_and_counts() -> None:
    x, y, features = toys.regression_1d()
    assert x.shape == y.shape == (400,)
    in_cluster = [((x >= low) & (x <= high)) for low, high in [(-7.2, -4.8), (-1.2, 1.2), (4.8, 7.2)]]
    assert [int(inside.sum()) for inside in in_cluster] == [115, 136, 149]
    assert torch.equal(features(x), torch.stack([x / 2, (x / 2) ** 2], dim=-1))


def test_regression_targets_have_the_stated_spread() -> None:
    _, y, _ = toys.regression_1d()
    assert abs(float(y.mean())) < 0.01
    assert float(y.std()) == pytest.approx(math.hypot(0.55, 0.05), abs=0.01)


def test_regression_noise_is_what_remains_of_a_local_fit() -> None:
    x, y, _ = toys.regression_1d()
    residuals = []
    for low, high in toys.CLUSTERS:
        chosen = (x >= low) & (x <= high)
        inputs = ((x[chosen] - (low + high) / 2) / 1.2).double()
        powers = inputs[:, None] ** torch.arange(8)
        residuals.append(y[chosen] - powers @ torch.linalg.lstsq(powers, y[chosen].double()[:, None]).solution[:, 0])
    assert float(torch.cat(residuals).std()) == pytest.approx(0.05, abs=0.006)


def test_classification_has_five_classes_on_a_ring() -> None:
    data = toys.classification_2d()
    assert data.y.bincount().tolist() == [40] * 5
    assert data.y_test.bincount().tolist() == [20] * 5
    angles = math.pi / 2 + 2 * math.pi / 5 * torch.arange(5)
    centres = 5 * torch.stack([angles.cos(), angles.sin()], dim=-1)
    for k in range(5):
        points = torch.cat([data.x[data.y == k], data.x_test[data.y_test == k]])
        assert torch.allclose(points.mean(0), centres[k], atol=0.5)
    assert float((data.x - centres[data.y]).std()) == pytest.approx(1, abs=0.08)
    assert float(data.x.norm(dim=1).max()) < 10  # so that ‖x‖ > 10 is outside the data


@pytest.mark.parametrize("make", [toys.regression_1d, toys.classification_2d])
def test_generators_are_deterministic_and_leave_the_global_state_alone(make) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = make(seed=7)
    assert torch.equal(torch.rand(3), expected)
    again, other = make(seed=7), make(seed=8)
    assert torch.equal(first.x, again.x) and torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x)


# --- experiments


def test_all_methods_share_the_prior_and_the_network() -> None:
    for settings in (REGRESSION, CLASSIFICATION):
        priors = {
            prior.weight_decay for name in METHODS for prior in toy_method(name, settings).priors if prior.on_weights
        }
        assert priors == {settings.weight_decay}


def test_regions_are_told_apart() -> None:
    assert not outside_clusters(toys.regression_1d().x).any()
    assert outside_clusters(torch.tensor([-10.0, -3.0, 3.0, 10.0])).all()
    assert torch.allclose(on_rings(torch.tensor([1.0])).norm(dim=-1).flatten(), torch.tensor([15.0, 17.5, 20.0]))


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(FordeError, match="quick"):
        settings_for(REGRESSION, "huge")  # type: ignore[arg-type]


def test_runs_are_reproducible() -> None:
    settings = replace(CLASSIFICATION, epochs=5, grid=11)
    first, again, other = (run_classification(FORDE, settings=settings, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.entropy, again.entropy)
    assert not torch.equal(first.entropy, other.entropy)


def test_runs_leave_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_regression(FORDE, settings=replace(REGRESSION, epochs=1, grid=11))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_the_classes(name: str) -> None:
    result = run_classification(name, settings=replace(CLASSIFICATION, epochs=60, grid=21))
    assert result.accuracy > 0.9
    assert result.entropy.shape == (21, 21)
    assert bool((result.entropy >= 0).all()) and float(result.entropy.max()) <= math.log(5) + 1e-5


# --- figures


def test_figures_are_written(tmp_path: Path) -> None:
    lines = [run_regression(name, settings=replace(REGRESSION, epochs=2)) for name in METHODS[:5]]
    maps = [run_classification(name, settings=replace(CLASSIFICATION, epochs=2, grid=21)) for name in METHODS[:2]]
    for path in (draw_figure_2(lines, tmp_path / "new" / "figure2.png"), draw_figure_3(maps, tmp_path / "figure3.png")):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    # Drawn again they are the same to the byte, so that a report changes no file without cause.
    for kind in ("png", "svg", "pdf"):
        first, again = (draw_figure_3(maps, tmp_path / f"{name}.{kind}").read_bytes() for name in "ab")
        assert first == again, kind


# --- claims, over several seeds: same network, optimizer, epochs and prior for all methods


@pytest.mark.slow
def test_forde_is_most_uncertain_outside_the_data_in_regression() -> None:
    settings = settings_for(REGRESSION, "quick")
    results = {
        name: [run_regression(name, settings=settings, seed=seed) for seed in SEEDS] for name in (*BASELINES, FORDE)
    }
    for name, runs in results.items():
        # Otherwise "more uncertain" would be had by fitting worse.
        assert mean(run.member_rmse for run in runs) < 1.4 * toys.NOISE_STD, name
    outside = {name: mean(run.outside for run in runs) for name, runs in results.items()}
    assert all(outside[FORDE] > outside[name] for name in BASELINES), outside
    for ours, theirs in zip(results[FORDE], results["deep-ensemble"], strict=True):
        assert ours.outside > 1.5 * theirs.outside
        assert ours.inside < theirs.outside  # and still sure where the data is


@pytest.mark.slow
def test_forde_is_uncertain_in_every_direction_in_classification() -> None:
    settings = settings_for(CLASSIFICATION, "quick")
    results = {
        name: [run_classification(name, settings=settings, seed=seed) for seed in SEEDS] for name in (*BASELINES, FORDE)
    }
    assert all(run.accuracy > 0.9 and run.test_accuracy > 0.9 for runs in results.values() for run in runs)
    assert all(run.fits for run in results[FORDE])
    far = {name: mean(run.far for run in runs) for name, runs in results.items()}
    assert all(far[FORDE] > far[name] for name in BASELINES), far
    for ours, theirs in zip(results[FORDE], results["deep-ensemble"], strict=True):
        assert ours.far > 3 * theirs.far
        # The paper's stronger claim: high in all directions, straight behind each class too, where the others are sure.
        assert float(ours.ring.min()) > 0.4 and float(ours.behind.min()) > 0.4
        assert float(theirs.ring.min()) < 0.01
        assert ours.on_test < 0.5 * ours.far
