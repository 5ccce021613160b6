"""Risk-coverage and the area under the ROC curve, against scikit-learn, loops and resampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from forde.errors import FordeError
from forde.metrics.selective import auroc, risk_coverage


def scores(n: int, shift: float, seed: int) -> torch.Tensor:
    """Rounded, so that some are equal."""
    return (torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift).round(
        decimals=1
    )


@pytest.mark.parametrize(("usual", "foreign"), [(40, 60), (1, 5), (300, 20)])
def test_auroc_is_that_of_scikit_learn(usual: int, foreign: int) -> None:
    a, b = scores(usual, 0, 0), scores(foreign, 0.7, 1)
    expected = roc_auc_score([0] * usual + [1] * foreign, torch.cat([a, b]).numpy())
    assert auroc(a, b).value == pytest.approx(expected, abs=1e-12)
    assert auroc(b, a).value == pytest.approx(1 - expected, abs=1e-12)


def test_its_error_is_the_spread_of_resampled_data() -> None:
    a, b = scores(200, 0, 0), scores(150, 0.7, 1)
    draw = np.random.default_rng(0)
    resampled = [auroc(a[draw.integers(200, size=200)], b[draw.integers(150, size=150)]).value for _ in range(400)]
    assert auroc(a, b).error == pytest.approx(float(np.std(resampled)), rel=0.15)


def test_risk_is_the_mean_loss_of_the_most_certain() -> None:
    uncertainty = torch.tensor([0.3, 0.1, 0.2, 0.4])
    loss = torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = risk_coverage(uncertainty, loss)
    order = uncertainty.argsort()
    assert found.risk.tolist() == pytest.approx([float(loss[order[:k]].mean()) for k in range(1, 5)])
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]


def test_equal_uncertainties_share_their_loss_whatever_their_order() -> None:
    uncertainty, loss = scores(50, 0, 2), scores(50, 0, 3)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(4))
    first, second = risk_coverage(uncertainty, loss), risk_coverage(uncertainty[order], loss[order])
    assert torch.allclose(first.risk, second.risk, atol=1e-12)
    assert torch.allclose(risk_coverage(torch.zeros(50), loss).risk, loss.mean().expand(50), atol=1e-12)


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(FordeError, match="at least one of each"):
        auroc(torch.zeros(0), torch.zeros(3))
    with pytest.raises(FordeError, match="was expected for both"):
        risk_coverage(torch.zeros(2), torch.zeros(3))
