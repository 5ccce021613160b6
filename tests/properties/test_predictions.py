"""What a prediction says, against sums over members written out in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from forde.prediction import ClassificationPrediction, RawPrediction, RegressionPrediction

M, B, C = 4, 200, 3


def test_shown_in_one_line() -> None:
    found = RegressionPrediction(torch.ones(M, B, 2), torch.full((M, B, 2), 0.25))
    assert repr(found) == (
        "RegressionPrediction(members=4, mean=[200, 2], mean total=0.25, mean aleatoric=0.25, mean epistemic=0)"
    )
    assert repr(RawPrediction(torch.ones(M, 0))) == "RawPrediction(members=4, mean=[0])"


def draws(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 3 * torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)


class TestClassification:
    def test_everything_from_the_members_probabilities(self) -> None:
        logits = draws(M, B, C)
        found = ClassificationPrediction(logits)
        p = torch.tensor([[[math.exp(v) / sum(map(math.exp, row)) for v in row] for row in m] for m in logits.tolist()])
        mean = p.double().mean(0)
        torch.testing.assert_close(found.probs.double(), mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(found.log_probs.double(), mean.log(), rtol=1e-5, atol=1e-6)
        entropies = [[-sum(q * math.log(q) for q in row) for row in member] for member in p.tolist()]
        torch.testing.assert_close(found.aleatoric, torch.tensor(entropies).double().mean(0), rtol=1e-5, atol=1e-6)
        total = torch.tensor([-sum(q * math.log(q) for q in row) for row in mean.tolist()]).double()
        torch.testing.assert_close(found.total, total, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.aleatoric + found.epistemic, found.total)

    def test_one_sure_member_does_not_outvote_the_others(self) -> None:
        """Probabilities are averaged, not logits: 1, ⅕ and ⅕ for the first class make 7/15."""
        sure, unsure = [20.0, 0.0], [0.0, math.log(4)]
        found = ClassificationPrediction(torch.tensor([[sure], [unsure], [unsure]]))
        assert found.labels.tolist() == [1]
        assert float(found.probs[0, 0]) == pytest.approx(7 / 15)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_members_that_agree_have_no_epistemic_uncertainty(self, dtype: torch.dtype) -> None:
        """Not even one of minus a rounding error, whose logarithm or root would be NaN."""
        same = draws(1, 5000, C, dtype=dtype).expand(3, -1, -1)
        epistemic = ClassificationPrediction(same).epistemic
        assert bool((epistemic >= 0).all()) and float(epistemic.max()) < 1e-6


class TestQuantities:
    @pytest.mark.parametrize("targets", [(), (2,)])
    def test_regression_is_the_mixture_of_the_members_gaussians(self, targets: tuple[int, ...]) -> None:
        """Var[X] = E[X²] − E[X]², with E[X²] = (1/M) Σ_m (σ_m² + μ_m²)."""
        means, variances = draws(M, B, *targets), draws(M, B, *targets).square()
        found = RegressionPrediction(means, variances)
        variance = (variances + means**2).mean(0) - means.mean(0) ** 2
        torch.testing.assert_close(found.std**2, variance)
        torch.testing.assert_close(found.total, variance)
        torch.testing.assert_close(found.aleatoric, variances.mean(0))
        torch.testing.assert_close(found.epistemic, (means**2).mean(0) - means.mean(0) ** 2)

    def test_an_own_loss_has_mean_and_variance_over_members(self) -> None:
        outputs = draws(M, B, 2, 5)
        found = RawPrediction(outputs)
        torch.testing.assert_close(found.mean, outputs.sum(0) / M)
        torch.testing.assert_close(found.epistemic, (outputs**2).mean(0) - outputs.mean(0) ** 2)

    def test_one_member_has_nobody_to_disagree_with(self) -> None:
        one = draws(1, B)
        for found in (RegressionPrediction(one, torch.ones_like(one)), RawPrediction(one)):
            assert not found.epistemic.any()
