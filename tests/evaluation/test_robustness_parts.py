"""The parts of a robustness evaluation: quantisation, folding, standard errors, paired comparison."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import forde
from forde.evaluation import cells_from, compare_evaluations, evaluate_robustness, score_batches
from forde.evaluation.robustness.quantisation import decode, encode
from forde.evaluation.robustness.resampling import resampler
from forde.inference import folded

QUICK: dict[str, Any] = {"n_bootstrap": 20, "verbose": False}


class TestQuantisation:
    @pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 30.0, 1000.0])
    @pytest.mark.parametrize("members", [1, 10])
    def test_metrics_move_by_less_than_1e_4(self, scale: float, members: int) -> None:
        """Metrics of 10,000 images from the probabilities kept; one in the nearest of ties may change class."""
        generator = torch.Generator().manual_seed(0)
        logits = scale * torch.randn(members, 10_000, 10, generator=generator)
        y = torch.randint(10, (10_000,), generator=generator)
        exact, kept = score_batches([(logits, y)]), score_batches([(decode(encode(logits)), y)])
        assert kept == pytest.approx(exact, abs=1e-4, rel=2e-6)
        smooth = ("brier", "total", "aleatoric", "epistemic", "confidence")
        assert {name: kept[name] for name in smooth} == pytest.approx({name: exact[name] for name in smooth}, abs=2e-6)

    def test_error_bounds(self) -> None:
        behind = torch.logspace(-6, math.log10(3e4), 5000, dtype=torch.float64)
        pairs = torch.stack([torch.zeros_like(behind), -behind], -1)
        back = decode(encode(pairs))
        found = back[:, 0] - back[:, 1]
        assert bool(((found - behind).abs() <= 1.2e-4 * (1 / 64 + behind)).all())
        assert bool((found.diff() >= 0).all())
        assert float((back.exp() - pairs.log_softmax(-1).exp()).abs().max()) < 5e-5

    def test_extremes(self) -> None:
        back = decode(encode(torch.tensor([0.0, -2e4, -math.inf])))
        assert back[0] == 0 and back[1:].tolist() == pytest.approx([-2e4, -(2.0**15)], rel=1.2e-4)
        assert decode(encode(torch.zeros(8))).exp().tolist() == pytest.approx([1 / 8] * 8, rel=1e-14)
        probs = torch.tensor([1 - 3e-6, 2e-6, 1e-6], dtype=torch.float64)
        assert 1 - float(decode(encode(probs.log()))[0].exp()) == pytest.approx(3e-6, rel=2e-3)


class TestFolding:
    def test_folded_networks_compute_the_same(self) -> None:
        for make in (forde.models.wrn16_4, forde.models.resnet18):
            torch.manual_seed(0)
            network = make(10)
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean.normal_(std=0.2)  # type: ignore[union-attr]
                    module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            x = torch.randn(2, 3, 16, 16)
            fast = folded(network)
            with torch.no_grad():
                torch.testing.assert_close(fast(x), network.eval()(x), rtol=1e-3, atol=1e-4)
        norms = [module for module in fast.modules() if isinstance(module, nn.BatchNorm2d)]
        assert not norms and any(isinstance(module, nn.BatchNorm2d) for module in network.modules())

    def test_what_cannot_be_traced_is_left_alone(self) -> None:
        class Choosing(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x if x.sum() > 0 else -x

        network = Choosing()
        assert folded(network) is network

    def test_a_convolution_used_twice_is_not_folded(self) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(self.conv(self.conv(x)))

        network = Twice().eval()
        network.norm.running_mean.normal_()  # type: ignore[union-attr]
        x = torch.randn(3, 2, 4, 4)
        torch.testing.assert_close(folded(network)(x), network(x))


def table_model(probs: Tensor) -> Any:
    """A model that looks up its answer: images hold their own number, probabilities `[M, N, C]` its row."""

    def model(x: Tensor) -> Tensor:
        return probs[:, x]

    return model


def numbers(images: Tensor) -> Tensor:
    """The number an image holds, from two bytes."""
    pixels = images.flatten(1).long()
    return pixels[:, 0] * 256 + pixels[:, 1]


def numbered_images(n: int) -> np.ndarray:
    images = np.zeros((n, 8, 8, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.arange(n) // 256, np.arange(n) % 256
    return images


def evaluated(logits: Tensor, labels: np.ndarray, folder: Path | None = None, name: str = "a", **options: Any) -> Any:
    images = numbered_images(len(labels))
    cells = cells_from(lambda corruption, severity: (images, labels), ["one", "two"], [1, 2])
    return evaluate_robustness(
        table_model(logits), (images, labels), cells, folder=folder, model_id=name, transform=numbers,
        **{"n_bootstrap": 20, "verbose": False} | options,
    )  # fmt: skip


class TestStandardErrors:
    def test_of_accuracy_and_nll_are_the_analytic_ones(self) -> None:
        n = 2000
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(2, n, 4, generator=generator)
        labels = logits.mean(0).argmax(-1)
        labels = torch.where(
            torch.rand(n, generator=generator) < 0.3, torch.randint(4, (n,), generator=generator), labels
        )
        result = evaluated(logits, labels.numpy(), n_bootstrap=2000)
        p, error = result.clean["accuracy"]
        assert error == pytest.approx(math.sqrt(p * (1 - p) / n), rel=0.06)
        losses = forde.evaluation.nll_per_sample(logits, labels)
        assert result.clean["nll"].error == pytest.approx(float(losses.std() / math.sqrt(n)), rel=0.06)
        # The copies of an image are not independent: four identical cells know no more than one.
        assert result.pooled["accuracy"].error == pytest.approx(error, rel=1e-9)
        assert result.pooled["ece"].error == pytest.approx(result.clean["ece"].error, rel=1e-9)

    def test_cells_of_other_images_are_resampled_on_their_own(self) -> None:
        draws = resampler("bootstrap", 50, 0, torch.device("cpu"))
        first, other = torch.arange(30) % 3, torch.arange(30) % 4
        assert torch.equal(draws(first), draws(first.clone()))
        assert not torch.equal(draws(first), draws(other))
        assert torch.equal(draws(first), resampler("bootstrap", 50, 0, torch.device("cpu"))(first))
        assert set(resampler("swap", 50, 0, torch.device("cpu"))(first).unique().tolist()) == {0, 1}


class TestComparison:
    n = 1500

    @pytest.fixture
    def labels(self) -> np.ndarray:
        return np.random.default_rng(0).integers(5, size=self.n)

    def logits(self, labels: np.ndarray, strength: float, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(3, self.n, 5, generator=generator)
        return noise + strength * nn.functional.one_hot(torch.from_numpy(labels), 5)

    def test_a_real_difference_is_found(self, labels: np.ndarray, tmp_path: Path) -> None:
        a = evaluated(self.logits(labels, 1.0, 0), labels, tmp_path / "a")
        b = evaluated(self.logits(labels, 1.3, 1), labels, tmp_path / "b")
        comparison = compare_evaluations(tmp_path / "a", tmp_path / "b", n_resamples=500)
        for found in (comparison.clean, comparison.pooled, comparison.cell_average, comparison.cells["two"][2]):
            assert found["accuracy"].value > 0 > found["nll"].value
            assert found["accuracy"].p_value == found["nll"].p_value == pytest.approx(1 / 501)
            assert found["nll"].high < 0 < found["accuracy"].low
        change = b.pooled["accuracy"].value - a.pooled["accuracy"].value
        assert comparison.pooled["accuracy"].value == pytest.approx(change, rel=1e-9)
        ece_change = b.pooled["ece"].value - a.pooled["ece"].value
        assert comparison.pooled["ece"].value == pytest.approx(ece_change, rel=1e-9)
        text = str(comparison)
        assert "cells of 4 in which the second is better: accuracy 4, nll 4" in text and "pooled nll" in text
        assert json.loads(json.dumps(comparison.to_dict()))["pooled"]["nll"]["p_value"] < 0.01

    def test_identical_runs_do_not_differ(self, labels: np.ndarray, tmp_path: Path) -> None:
        for name in ("a", "b"):
            evaluated(self.logits(labels, 1.0, 0), labels, tmp_path / name)
        comparison = compare_evaluations(tmp_path / "a", tmp_path / "b", n_resamples=100)
        for found in (comparison.clean, comparison.pooled, comparison.cell_average):
            for difference in found.values():
                assert difference == (0, 0, 0, 0, 1)

    def test_equally_good_runs_rarely_differ(self, labels: np.ndarray, tmp_path: Path) -> None:
        """p-values of runs that differ by noise only are spread over [0, 1]."""
        for seed in range(12):
            evaluated(self.logits(labels, 1.0, seed), labels, tmp_path / str(seed))
        pairs = [(tmp_path / str(seed), tmp_path / str(seed + 1)) for seed in range(0, 12, 2)]
        p_values = [
            compare_evaluations(a, b, n_resamples=200).pooled[m].p_value for a, b in pairs for m in ("nll", "ece")
        ]
        assert sum(p < 0.05 for p in p_values) <= 2 and max(p_values) > 0.3

    def test_the_paired_error_is_the_analytic_one(self, labels: np.ndarray, tmp_path: Path) -> None:
        logits = [self.logits(labels, strength, seed) for strength, seed in ((1.0, 0), (1.1, 1))]
        for name, values in zip("ab", logits, strict=True):
            evaluated(values, labels, tmp_path / name)
        y = torch.from_numpy(labels)
        change = forde.evaluation.nll_per_sample(logits[1], y) - forde.evaluation.nll_per_sample(logits[0], y)
        found = compare_evaluations(tmp_path / "a", tmp_path / "b", n_resamples=1000).clean["nll"]
        assert found.value == pytest.approx(float(change.mean()), rel=1e-5)
        assert found.error == pytest.approx(float(change.std() / math.sqrt(self.n)), rel=0.08)

    def test_bad_pairs_are_explained(self, labels: np.ndarray, tmp_path: Path) -> None:
        evaluated(self.logits(labels, 1.0, 0), labels, tmp_path / "a")
        evaluated(self.logits(labels, 1.0, 0), np.roll(labels, 1), tmp_path / "b")
        with pytest.raises(forde.FordeError, match="different labels"):
            compare_evaluations(tmp_path / "a", tmp_path / "b")
        images = numbered_images(self.n)
        model = table_model(self.logits(labels, 1.0, 0))
        evaluate_robustness(model, (images, labels), folder=tmp_path / "c", model_id="c", transform=numbers, **QUICK)
        with pytest.raises(forde.FordeError, match=r"only one of the evaluations was made under .* of severity"):
            compare_evaluations(tmp_path / "a", tmp_path / "c")
        (tmp_path / "a" / "one-1.safetensors").unlink()
        with pytest.raises(forde.FordeError, match="missing, damaged or of another model"):
            compare_evaluations(tmp_path / "a", tmp_path / "a")
