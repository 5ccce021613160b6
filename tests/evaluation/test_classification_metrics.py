"""Classification metrics against scikit-learn, scipy and closed forms, and METHODS 9's properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import forde
from forde.evaluation import (
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    disagreement,
    ece,
    gradient_cosine_distance,
    mixture,
    nll,
    score_batches,
    uncertainty,
)
from forde.metrics.statistics import sample_terms

M, N, C = 4, 600, 5


def test_streamed_scores_equal_the_functions(logits: Tensor, y: Tensor) -> None:
    probs = mixture(logits.softmax(-1))
    expected = {
        "accuracy": accuracy(probs, y),
        "nll": nll(logits, y),
        "brier": brier(probs, y),
        "ece": ece(probs, y),
        "disagreement": disagreement(logits),
        "confidence": float(probs.amax(-1).mean()),
        **{name: value for name, value in uncertainty(logits.softmax(-1)).items() if "std" not in name},
    }
    for size in (7, 100, N):
        streamed = score_batches(zip(logits.split(size, 1), y.split(size), strict=True))
        assert streamed == pytest.approx(expected, rel=1e-12)


def test_statistics_do_not_depend_on_the_slices(logits: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample_terms(logits, y)
    monkeypatch.setattr("forde.metrics.statistics.CHUNK", 100)
    torch.testing.assert_close(sample_terms(logits, y), whole, rtol=1e-12, atol=1e-12)


def test_brier_and_entropy_against_scikit_learn_and_scipy(logits: Tensor, y: Tensor) -> None:
    from scipy.stats import entropy
    from sklearn.metrics import accuracy_score, brier_score_loss

    members = logits.softmax(-1)
    probs = mixture(members)
    expected = brier_score_loss(y.numpy(), probs.numpy(), scale_by_half=False, labels=list(range(C)))
    assert brier(probs, y) == pytest.approx(expected, rel=1e-12)
    assert accuracy(probs, y) == accuracy_score(y, probs.argmax(-1))
    parts = uncertainty(members)
    total, aleatoric = entropy(probs.numpy(), axis=-1), entropy(members.numpy(), axis=-1).mean(0)
    assert parts["total"] == pytest.approx(total.mean(), rel=1e-12)
    assert parts["aleatoric"] == pytest.approx(aleatoric.mean(), rel=1e-12)
    assert parts["epistemic"] == pytest.approx((total - aleatoric).mean(), rel=1e-9)
    assert parts["epistemic_std"] == pytest.approx((total - aleatoric).std(), rel=1e-9)


def test_epistemic_is_between_zero_and_ln_m(logits: Tensor) -> None:
    assert 0 <= uncertainty(logits.softmax(-1))["epistemic"] <= math.log(min(M, C))
    certain = torch.eye(C, dtype=torch.float64)[:M].unsqueeze(1)
    assert uncertainty(certain)["epistemic"] == pytest.approx(math.log(M), rel=1e-12)
    assert uncertainty(logits[:1].expand(M, N, C).softmax(-1))["epistemic"] == pytest.approx(0, abs=1e-14)


def test_adaptive_ece_equals_scikit_learns_quantile_bins(logits: Tensor, y: Tensor) -> None:
    from sklearn.calibration import calibration_curve

    probs = mixture(logits.softmax(-1))
    confidence, label = probs.max(-1)
    correct = (label == y).numpy()
    right, sure = calibration_curve(correct, confidence.numpy(), n_bins=15, strategy="quantile")
    # N is a multiple of the bins, so each bin weighs the same.
    assert adaptive_ece(probs, y) == pytest.approx(np.abs(right - sure).mean(), rel=1e-9)


def test_adaptive_ece_shares_ties() -> None:
    """Four of five right at confidence 0.8 is calibrated, in whatever order and bins they come."""
    probs = torch.tensor([[0.8, 0.2]] * 10, dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
    for n_bins in (1, 3, 10, 15):
        assert adaptive_ece(probs, y, n_bins) == pytest.approx(0, abs=1e-15)
    assert adaptive_ece(probs, y.flip(0), 3) == pytest.approx(0, abs=1e-15)


def test_adaptive_bins_have_equal_mass() -> None:
    """By hand: sorted confidences cut into bins of 3 and 2."""
    confidence = torch.tensor([0.6, 0.7, 0.75, 0.9, 0.95], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], -1)
    y = torch.tensor([0, 1, 1, 0, 0])
    expected = (abs(0.6 + 0.7 + 0.75 - 1) + abs(0.9 + 0.95 - 2)) / 5
    assert adaptive_ece(probs, y, 2) == pytest.approx(expected, rel=1e-12)
    assert adaptive_ece(probs, y, 1) == pytest.approx(ece(probs, y, 1), rel=1e-12)


def test_classwise_ece_by_hand() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.1, 0.2]], dtype=torch.float64)
    y = torch.tensor([0, 2])
    # One wide bin: class frequencies 1/2, 0, 1/2 against mean probabilities 0.7, 0.15, 0.15.
    assert classwise_ece(probs, y, 1) == pytest.approx((0.2 + 0.15 + 0.35) / 3, rel=1e-12)
    assert classwise_ece(torch.eye(3), torch.arange(3)) == 0


def test_disagreement_counts_pairs(logits: Tensor) -> None:
    votes = logits.argmax(-1)
    pairs = [(votes[i] != votes[j]).double().mean() for i in range(M) for j in range(i)]
    assert disagreement(logits) == pytest.approx(float(torch.stack(pairs).mean()), rel=1e-12)
    assert disagreement(logits[:1]) == 0
    assert disagreement(logits[:1].expand(M, N, C)) == 0


def test_new_metrics_do_not_depend_on_order(logits: Tensor, y: Tensor) -> None:
    generator = torch.Generator().manual_seed(3)
    members, samples = torch.randperm(M, generator=generator), torch.randperm(N, generator=generator)
    shuffled, target = logits[members][:, samples], y[samples]
    for metric in (adaptive_ece, classwise_ece):
        a, b = metric(mixture(logits.softmax(-1)), y), metric(mixture(shuffled.softmax(-1)), target)
        assert a == pytest.approx(b, rel=1e-10)
    assert disagreement(shuffled) == pytest.approx(disagreement(logits), rel=1e-12)
    assert score_batches([(shuffled, target)]) == pytest.approx(score_batches([(logits, y)]), rel=1e-10)


def test_extreme_logits_give_finite_scores() -> None:
    logits = torch.tensor([[[1e4, -1e4, 0.0]], [[1e4, -1e4, 0.0]]])
    scores = score_batches([(logits, torch.tensor([1]))])
    assert scores["nll"] == pytest.approx(2e4) and scores["total"] == 0 and scores["brier"] == 2
    assert all(math.isfinite(value) for value in scores.values())


def test_gradient_distance_of_linear_networks_is_that_of_their_weights() -> None:
    """∂(w_c·x + b_c)/∂x = w_c, so the distance is known."""
    ensemble = forde.Ensemble(lambda: torch.nn.Linear(6, C), M, seed=2)
    x, y = torch.randn(40, 6), torch.arange(40) % C
    weights = torch.stack([member.weight.detach().double() for member in ensemble.members])  # [M, C, 6]
    rows = torch.nn.functional.normalize(weights[:, y], dim=-1)
    cosines = [(rows[i] * rows[j]).sum(-1).mean() for i in range(M) for j in range(i)]
    expected = 1 - float(torch.stack(cosines).mean())
    assert gradient_cosine_distance(ensemble, x, y) == pytest.approx(expected, rel=1e-6)
    assert gradient_cosine_distance(ensemble, x, y, batch_size=7) == pytest.approx(expected, rel=1e-6)


def test_gradient_distance_uses_evaluation_mode_and_restores_training() -> None:
    ensemble = forde.Ensemble(lambda: forde.models.MLP(4, [8], 3, batch_norm=True), 2).train()
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    first = gradient_cosine_distance(ensemble, x, y)
    assert ensemble.members[0].training
    assert gradient_cosine_distance(ensemble, x, y, batch_size=5) == pytest.approx(first, rel=1e-4)


def test_bad_input_is_explained(logits: Tensor, y: Tensor) -> None:
    single = forde.Ensemble(lambda: torch.nn.Linear(6, C), 1)
    with pytest.raises(forde.FordeError, match="at least 2 members"):
        gradient_cosine_distance(single, torch.randn(2, 6), torch.tensor([0, 1]))
    with pytest.raises(forde.FordeError, match="one label each"):
        score_batches([(logits, y[:3])])
    with pytest.raises(forde.FordeError, match="nothing to score"):
        score_batches([])
    with pytest.raises(forde.FordeError, match="at least 1 bin"):
        ece(mixture(logits.softmax(-1)), y, 0)
    with pytest.raises(forde.FordeError, match="at least 1 of each"):
        adaptive_ece(torch.empty(0, 3), torch.empty(0, dtype=torch.long))
