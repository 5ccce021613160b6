"""Whole trainings in a few lines each: they learn, predict in the right shapes, and are scored."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tasks import normal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.evaluation import accuracy, crps, ece, gaussian_mixture_nll, nll, score
from forde.likelihoods import Binary, Classification, DenseClassification, LearnedNoiseRegression, MultiLabel
from forde.prediction import (
    ClassificationPrediction,
    DensePrediction,
    MultiLabelPrediction,
    RawPrediction,
    RegressionPrediction,
)
from forde.training.diagnostics import probe

FIT = {"epochs": 12, "batch_size": 32, "lr": 0.1, "verbose": False}


def own_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    )


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))


def test_own_cnn_with_class_weights_and_a_loader() -> None:
    """Weights move the share of a class: with the third one's at 20 it is predicted more often than without."""
    x = normal(128, 1, 8, 8).float()
    y = torch.arange(128) % 3
    x[:, 0, 0, 0] += y
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    shares = []
    for weights in (None, torch.tensor([1.0, 1.0, 20.0])):
        ensemble = forde.Ensemble(own_cnn, 2, seed=0, likelihood=Classification(class_weights=weights))
        forde.fit(ensemble, "forde", loader, epochs=2, lr=0.05, verbose=False)
        shares.append(float(ensemble.predict(loader).probs[:, 2].mean()))
    assert shares[1] > shares[0] + 0.1


def blobs() -> tuple[Tensor, Tensor]:
    """Images whose bright pixels are class 1; a quarter of the pixels have no label, and bytes hold the labels."""
    x = normal(96, 1, 6, 6).float()
    y = (x[:, 0] > 0).to(torch.uint8)
    return x, torch.where(normal(96, 6, 6, seed=1) > 0.7, 255, y).to(torch.uint8)


def test_segmentation_with_uncertainty_for_each_pixel(tmp_path: Path) -> None:
    x, y = blobs()
    ensemble = forde.Ensemble(segmenter, 3, seed=0, likelihood=DenseClassification(ignore_index=255))
    history = forde.fit(ensemble, "forde", (x, y), **FIT)
    prediction = ensemble.predict(x)
    assert isinstance(prediction, DensePrediction)
    assert prediction.probs.shape == (96, 2, 6, 6) and prediction.labels.shape == (96, 6, 6)
    assert prediction.total.shape == prediction.aleatoric.shape == prediction.epistemic.shape == (96, 6, 6)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(96, 6, 6))
    torch.testing.assert_close(prediction.log_probs.exp(), prediction.probs)
    found = score(prediction, y, ignore_index=255)
    counts = y != 255
    assert found["accuracy"] == pytest.approx(float((prediction.labels == y)[counts].double().mean()))
    assert found["accuracy"] > 0.9 and found["nll"] < math.log(2) / 2
    assert 0 <= history["disagreement"][-1] < 0.5 and -1 <= history["gradient_cosine"][-1] <= 1
    loaded = forde.Ensemble.load(ensemble.save(tmp_path / "e"), segmenter)
    assert score(loaded.predict(x), y, ignore_index=255) == found


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_several_labels(dtype: torch.dtype) -> None:
    x = normal(128, 4).float()
    y = (x @ normal(4, 3, seed=2).float() > 0).to(dtype)
    ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 3, seed=0, likelihood="multi-label")
    forde.fit(ensemble, "forde", (x, y), **FIT)
    prediction = ensemble.predict(x)
    assert isinstance(prediction, MultiLabelPrediction)
    assert prediction.probs.shape == prediction.labels.shape == prediction.epistemic.shape == (128, 3)
    assert score(prediction, y)["accuracy"] > 0.9


@pytest.mark.parametrize("squeeze", [False, True])
def test_a_single_logit(squeeze: bool) -> None:
    x = normal(128, 4).float()
    y = x[:, 0] > x[:, 1]
    last: list[nn.Module] = [nn.Flatten(0)] if squeeze else []
    ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(4, 1), *last), 3, seed=0, likelihood="binary")
    forde.fit(ensemble, "forde", (x, y), **FIT, engine="eager")
    prediction = ensemble.predict(x)
    assert isinstance(prediction, ClassificationPrediction)
    outputs = torch.stack([member(x).detach().reshape(-1) for member in ensemble.eval().members])
    torch.testing.assert_close(prediction.probs[:, 1], outputs.sigmoid().mean(0))
    assert score(prediction, y)["accuracy"] > 0.9
    assert probe(ensemble, x, y)["disagreement"] == pytest.approx(score(prediction, y)["disagreement"])


def test_two_classes_with_one_logit_are_trained_as_with_two() -> None:
    """f and (0, f) are the same model, so the same loss and the same repulsion between input gradients."""
    x = normal(64, 4)
    y = (x[:, 0] > 0).long()

    class Two(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            f = super().forward(x)
            return torch.cat([torch.zeros_like(f), f], 1)

    found = []
    for make, likelihood in ((nn.Linear, Binary()), (Two, Classification())):
        ensemble = forde.Ensemble(lambda make=make: make(4, 1), 3, seed=0, likelihood=likelihood).double()
        method = forde.method("forde-identity", output="log_prob")
        forde.fit(ensemble, method, (x, y), **{**FIT, "epochs": 3, "engine": "eager"})
        found.append(ensemble.predict(x).probs)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_mixed_labels() -> None:
    x, y = normal(64, 4).float(), torch.arange(64) % 3
    shares = torch.rand(64, 1, generator=torch.Generator().manual_seed(0))
    other = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    one_hot = nn.functional.one_hot(y, 3).double()
    mixed = shares * x + (1 - shares) * x[other], shares * one_hot + (1 - shares) * one_hot[other]
    ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 2, likelihood="classification")
    history = forde.fit(ensemble, "forde", mixed, **FIT)
    assert history["loss"][-1] < history["loss"][0]


def test_regression_of_images_with_learned_noise() -> None:
    x = normal(64, 1, 6, 6).float()
    y = 2 * x + 0.1 * normal(64, 1, 6, 6, seed=3).float()
    likelihood = LearnedNoiseRegression(axis=-3)
    ensemble = forde.Ensemble(segmenter, 2, seed=0, likelihood=likelihood)
    forde.fit(ensemble, "forde", (x, y), **{**FIT, "lr": 0.001})
    prediction = ensemble.predict(x)
    assert isinstance(prediction, RegressionPrediction)
    assert prediction.mean.shape == prediction.std.shape == prediction.epistemic.shape == y.shape
    found = score(prediction, y)
    assert found["rmse"] < float(y.std())
    assert found["nll"] == gaussian_mixture_nll(prediction.member_means, prediction.member_variances, y)
    assert found["crps"] == crps(prediction.member_means, prediction.member_variances, y)


def test_scores_of_pixels_and_labels_are_those_of_rows() -> None:
    logits, y = normal(3, 5, 4, 2, 3), torch.randint(4, (5, 2, 3), generator=torch.Generator().manual_seed(0))
    rows, flat = logits.permute(0, 1, 3, 4, 2).reshape(3, 30, 4), y.reshape(30)
    found = score(DensePrediction(logits), y)
    probs = rows.softmax(-1).mean(0)
    assert found["nll"] == pytest.approx(nll(rows, flat))
    assert found["ece"] == pytest.approx(ece(probs, flat))
    assert found["accuracy"] == pytest.approx(accuracy(probs, flat))
    many, held = normal(3, 5, 4, seed=1), normal(5, 4, seed=2) > 0
    p = many.sigmoid().mean(0)
    expected = -torch.where(held, p.log(), (1 - p).log()).mean()
    assert score(MultiLabelPrediction(many), held)["nll"] == pytest.approx(float(expected))
    torch.testing.assert_close(MultiLabelPrediction(many).total, torch.special.entr(p) + torch.special.entr(1 - p))


TENTHS = torch.tensor([[7, 2, 1], [0, 10, 0], [3, 3, 4], [1, 1, 8]])
"""Probabilities of three classes, in tenths."""


def drawn(tenths: Tensor) -> Tensor:
    """Labels that occur as often as their probabilities say: `[N, C]` → `[10 N]`, ten for each row."""
    return torch.arange(tenths.shape[1]).repeat(len(tenths)).repeat_interleave(tenths.flatten())


def test_scores_under_soft_labels_are_those_of_labels_drawn_from_them() -> None:
    """All of them, calibration too: each sample ten times, with labels as often as their probabilities say."""
    logits, soft = 3 * normal(2, 4, 3), TENTHS.double() / 10
    found = score(ClassificationPrediction(logits), soft)
    expected = score(ClassificationPrediction(logits.repeat_interleave(10, 1)), drawn(TENTHS))
    assert found == pytest.approx(expected, rel=1e-12)
    one_hot = nn.functional.one_hot(torch.tensor([0, 2, 1, 1])).float()
    assert score(ClassificationPrediction(logits), one_hot) == pytest.approx(
        score(ClassificationPrediction(logits), one_hot.argmax(-1)), rel=1e-12
    )
    pixels, masks = logits.view(2, 2, 2, 3).movedim(-1, 2), soft.view(2, 2, 3).movedim(-1, 1)
    assert score(DensePrediction(pixels), masks) == pytest.approx(expected, rel=1e-12)


def test_scores_under_soft_yes_and_no() -> None:
    logits, tenths = 3 * normal(2, 4), torch.tensor([1, 9, 5, 10])
    labels = drawn(torch.stack([10 - tenths, tenths], 1))
    two_classes = torch.stack([torch.zeros_like(logits), logits], -1)
    expected = score(ClassificationPrediction(two_classes.repeat_interleave(10, 1)), labels)
    assert score(ClassificationPrediction(two_classes), tenths / 10) == pytest.approx(expected, rel=1e-6)
    found = score(MultiLabelPrediction(logits.view(2, 2, 2)), tenths.view(2, 2) / 10)
    assert found == pytest.approx(expected, rel=1e-6)


def test_soft_labels_are_validated() -> None:
    x, soft = normal(40, 5).float(), normal(40, 3, seed=1).softmax(-1).float()
    ensemble = forde.Ensemble(lambda: nn.Linear(5, 3), 2, likelihood=Classification([1.0, 2.0, 3.0]))
    history = forde.fit(ensemble, "forde", (x, soft), **{**FIT, "epochs": 3}, validation=(x, soft))
    assert score(ensemble.predict(x), soft)["nll"] == pytest.approx(min(history["validation_nll"]), rel=1e-6)


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_a_number_for_each_sample_with_and_without_an_axis(engine: str) -> None:
    """As many members as samples in a batch: stacked outputs `[M, B]` must not be taken for targets `[B, B]`."""
    x, y, found = normal(32, 4), normal(32, seed=1), []
    for last in (nn.Identity(), nn.Flatten(0)):
        make = lambda last=last: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), last)  # noqa: E731
        ensemble = forde.Ensemble(make, 8, likelihood="regression").double()
        options = {"epochs": 2, "batch_size": 8, "lr": 0.05, "verbose": False, "diagnostics_every": 0}
        forde.fit(ensemble, "forde-identity", (x, y), engine=engine, **options)
        prediction = ensemble.predict(x)
        assert prediction.mean.shape == (32,)
        found.append(torch.stack([prediction.mean, prediction.std]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("members", [1, 2])
def test_a_number_for_a_single_sample(members: int) -> None:
    """Stacked outputs `[1, 1]` of one member and one sample are no outputs `[B, 1]`."""
    found = []
    for engine in ("eager", "vectorized"):
        ensemble = forde.Ensemble(
            lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), members, likelihood="regression"
        ).double()
        forde.fit(
            ensemble, "deep-ensemble", (normal(3, 4), normal(3, seed=1)), epochs=2, batch_size=1, lr=0.01,
            engine=engine, verbose=False,
        )  # fmt: skip
        found.append(ensemble.predict(normal(3, 4)).mean)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("prediction", "y", "words"),
    [
        (DensePrediction(torch.zeros(2, 3, 4, 5)), torch.zeros(3, 4), r"labels of shape \[3, 5\]"),
        (DensePrediction(torch.zeros(2, 3, 4, 5)), torch.full((3, 5), 255), "pass ignore_index=255"),
        (MultiLabelPrediction(torch.zeros(2, 3, 4)), torch.zeros(3), r"labels of shape \[3, 4\]"),
        (ClassificationPrediction(torch.zeros(2, 3, 4)), torch.full((3,), 0.5), "not whole numbers"),
        (ClassificationPrediction(torch.zeros(2, 3, 4)), torch.full((3, 4), 0.5), "do not sum to 1"),
        (MultiLabelPrediction(torch.zeros(2, 3, 4)), torch.full((3, 4), 1.5), "some are negative or do not sum to 1"),
        (RawPrediction(torch.zeros(2, 3)), torch.zeros(3), "no metrics"),
    ],
)
def test_what_cannot_be_scored_is_a_sentence(prediction: forde.Prediction, y: Tensor, words: str) -> None:
    with pytest.raises(forde.FordeError, match=words):
        score(prediction, y)


def test_likelihoods_without_options_are_what_they_were() -> None:
    """One member is plain training, bit for bit."""
    x, y = normal(32, 4).float(), torch.arange(32) % 3
    states = []
    for likelihood in ("classification", nn.functional.cross_entropy, MultiLabel()):
        ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 1, seed=0, likelihood=likelihood)
        targets = nn.functional.one_hot(y, 3) if isinstance(likelihood, MultiLabel) else y
        forde.fit(ensemble, "deep-ensemble", (x, targets), **FIT)
        states.append(ensemble.members[0].weight.detach())
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])
