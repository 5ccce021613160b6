"""METHODS 9: metrics and predictions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import forde
from forde.evaluation import accuracy, brier, ece, mixture, nll, reliability
from forde.prediction import ClassificationPrediction, RegressionPrediction, entropy

M, N, C = 4, 60, 5


def test_mixture_nll_is_at_most_the_members_mean(logits: Tensor, y: Tensor) -> None:
    members = [nll(logits[i : i + 1], y) for i in range(M)]
    assert nll(logits, y) < sum(members) / M
    same = logits[:1].expand(M, N, C)
    assert nll(same, y) == pytest.approx(members[0], rel=1e-12)


def test_epistemic_is_bounded(logits: Tensor) -> None:
    prediction = ClassificationPrediction(logits)
    assert bool((prediction.epistemic >= 0).all())
    assert prediction.epistemic.max() <= min(math.log(M), math.log(C))
    torch.testing.assert_close(prediction.total, prediction.aleatoric + prediction.epistemic)
    # Certain members that contradict each other reach ln M; members that agree have none.
    split = ClassificationPrediction(1e4 * torch.eye(C, dtype=torch.float64)[:M].unsqueeze(1))
    assert float(split.epistemic[0]) == pytest.approx(math.log(M))
    assert float(split.aleatoric[0]) == 0
    assert float(ClassificationPrediction(logits[:1].expand(M, N, C)).epistemic.max()) < 1e-12


@pytest.mark.parametrize(
    ("confidences", "correct", "expected"),
    [
        ([0.8, 0.8], [1, 0], 0.3),
        ([1.0, 1.0], [1, 1], 0.0),
        ([1.0, 1.0], [0, 0], 1.0),
        ([0.6, 0.9], [1, 1], 0.25),
        # 0.6 is the edge of bins (8/15, 9/15] and (9/15, 10/15]; it belongs to the lower one, with 0.55.
        ([0.6, 0.55], [1, 0], 0.075),
        ([0.6, 0.61], [1, 0], 0.505),
    ],
)
def test_ece_by_hand(confidences: list[float], correct: list[int], expected: float) -> None:
    p = torch.tensor(confidences, dtype=torch.float64)
    probs = torch.stack([p, 1 - p], dim=-1)
    y = 1 - torch.tensor(correct)
    assert ece(probs, y) == pytest.approx(expected, abs=1e-12)


def test_pooled_ece_is_at_most_the_mean_over_cells() -> None:
    """Over- and under-confident cells cancel when pooled; accuracy and NLL do not care."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2, 500, C, dtype=torch.float64, generator=generator)
    probs = logits.softmax(-1)
    y = torch.stack([probs[0].argmax(-1), torch.randint(C, (500,), generator=generator)])
    cells = [ece(probs[i], y[i]) for i in range(2)]
    pooled = ece(probs.flatten(0, 1), y.flatten())
    assert pooled < sum(cells) / 2
    both = [accuracy(probs[i], y[i]) for i in range(2)]
    assert accuracy(probs.flatten(0, 1), y.flatten()) == pytest.approx(sum(both) / 2)
    losses = [nll(logits[i : i + 1], y[i]) for i in range(2)]
    assert nll(logits.reshape(1, -1, C), y.flatten()) == pytest.approx(sum(losses) / 2)


def test_metrics_do_not_depend_on_order(logits: Tensor, y: Tensor) -> None:
    members, samples = torch.randperm(M), torch.randperm(N)
    shuffled = logits[members][:, samples]
    for metric in (ece, brier, accuracy):
        a, b = metric(mixture(logits.softmax(-1)), y), metric(mixture(shuffled.softmax(-1)), y[samples])
        assert a == pytest.approx(b, rel=1e-10)
    assert nll(logits, y) == pytest.approx(nll(shuffled, y[samples]), rel=1e-12)


def test_predictions_do_not_depend_on_the_batch_size() -> None:
    ensemble = forde.Ensemble(lambda: forde.models.MLP(4, [8], 3, batch_norm=True), 3)
    x = torch.randn(50, 4)
    a, b = ensemble.predict(x, batch_size=7), ensemble.predict(x, batch_size=512)
    torch.testing.assert_close(a.probs, b.probs)
    torch.testing.assert_close(a.epistemic, b.epistemic)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[[1e4, -1e4]], [[1e4, -1e4]]])
    assert nll(logits, torch.tensor([1])) == pytest.approx(2e4)
    assert nll(logits, torch.tensor([0])) == 0
    prediction = ClassificationPrediction(logits)
    assert bool(prediction.log_probs.isfinite().all()) and float(prediction.total) == 0


def test_top_k_and_brier(logits: Tensor, y: Tensor) -> None:
    probs = mixture(logits.softmax(-1))
    assert accuracy(probs, y, k=1) <= accuracy(probs, y, k=2) <= accuracy(probs, y, k=C) == 1
    assert brier(torch.full((3, 4), 0.25), torch.tensor([0, 1, 2])) == pytest.approx(0.75)
    with pytest.raises(forde.FordeError, match="k is 9"):
        accuracy(probs, y, k=9)


def test_against_scikit_learn(logits: Tensor, y: Tensor) -> None:
    from sklearn.metrics import log_loss, top_k_accuracy_score

    probs = mixture(logits.softmax(-1)).numpy()
    assert nll(logits, y) == pytest.approx(log_loss(y, probs, labels=range(C)), rel=1e-10)
    expected = top_k_accuracy_score(y, probs, k=2, labels=range(C))
    assert accuracy(torch.tensor(probs), y, k=2) == pytest.approx(expected)


def test_reliability_counts_everything(logits: Tensor, y: Tensor) -> None:
    table = reliability(mixture(logits.softmax(-1)), y, n_bins=10)
    assert float(table.counts.sum()) == N
    assert bool(((table.confidence >= 0) & (table.confidence <= 1)).all())


def test_entropy_of_certainty_is_zero() -> None:
    assert float(entropy(torch.tensor([1.0, 0.0]))) == 0


class TestRegression:
    def test_mixture_variance_is_that_of_samples(self) -> None:
        """Law of total variance, against draws from the mixture."""
        generator = torch.Generator().manual_seed(0)
        means, variances = torch.randn(3, 1, generator=generator), torch.rand(3, 1, generator=generator) + 0.1
        prediction = RegressionPrediction(means.double(), variances.double())
        noise = torch.randn(400_000, 3, generator=generator, dtype=torch.float64)
        draws = (means.flatten() + variances.flatten().sqrt() * noise).flatten()
        assert float(prediction.mean) == pytest.approx(float(draws.mean()), abs=0.01)
        assert float(prediction.total) == pytest.approx(float(draws.var()), rel=0.01)
        assert float(prediction.std) == pytest.approx(float(draws.std()), rel=0.01)

    def test_one_member_reduces_to_itself(self) -> None:
        prediction = RegressionPrediction(torch.tensor([[2.0]]), torch.tensor([[9.0]]))
        assert float(prediction.std) == 3 and float(prediction.epistemic) == 0
