"""The metric classes equal the functions, and torchmetrics' own where it has them, over any split into batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import forde
from forde.evaluation import accuracy, adaptive_ece, brier, classwise_ece, disagreement, ece, mixture, nll, uncertainty

torchmetrics = pytest.importorskip("torchmetrics")
from torchmetrics.classification import (  # noqa: E402
    BinaryCalibrationError,
    MulticlassAccuracy,
    MulticlassCalibrationError,
)

from forde.evaluation import torchmetrics_ as classes  # noqa: E402

M, N, C = 3, 500, 6


CASES: dict[str, tuple[Callable[..., torchmetrics.Metric], Callable[[Tensor, Tensor], float]]] = {
    "accuracy": (classes.EnsembleAccuracy, lambda f, y: accuracy(mixture(f.softmax(-1)), y)),
    "top3": (lambda **o: classes.EnsembleAccuracy(k=3, **o), lambda f, y: accuracy(mixture(f.softmax(-1)), y, 3)),
    "nll": (classes.EnsembleNLL, nll),
    "brier": (classes.EnsembleBrier, lambda f, y: brier(mixture(f.softmax(-1)), y)),
    "ece": (classes.EnsembleECE, lambda f, y: ece(mixture(f.softmax(-1)), y)),
    "adaptive": (classes.EnsembleAdaptiveECE, lambda f, y: adaptive_ece(mixture(f.softmax(-1)), y)),
    "classwise": (
        lambda **o: classes.EnsembleClasswiseECE(C, **o),
        lambda f, y: classwise_ece(mixture(f.softmax(-1)), y),
    ),
    "disagreement": (classes.EnsembleDisagreement, lambda f, y: disagreement(f)),
}


@pytest.mark.parametrize("outputs", ["logits", "probs"])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_function(case: str, outputs: str, logits: Tensor, y: Tensor) -> None:
    make, function = CASES[case]
    values = logits if outputs == "logits" else logits.softmax(-1)
    for size in (64, N):
        metric = make(outputs=outputs)
        for part, target in zip(values.split(size, 1), y.split(size), strict=True):
            metric.update(part, target)
        assert float(metric.compute()) == pytest.approx(function(logits, y), rel=1e-9)
    metric.reset()
    metric.update(values[:, :9], y[:9])
    assert float(metric.compute()) == pytest.approx(function(logits[:, :9], y[:9]), rel=1e-9)


def test_uncertainty_is_a_dictionary(logits: Tensor, y: Tensor) -> None:
    metric = classes.EnsembleUncertainty()
    for part, target in zip(logits.split(64, 1), y.split(64), strict=True):
        metric.update(part, target)
    expected = {key: value for key, value in uncertainty(logits.softmax(-1)).items() if "std" not in key}
    assert {key: float(value) for key, value in metric.compute().items()} == pytest.approx(expected, rel=1e-12)


def test_equal_to_torchmetrics_own(logits: Tensor, y: Tensor) -> None:
    probs = mixture(logits.softmax(-1))
    own = MulticlassCalibrationError(C, n_bins=15, norm="l1")(probs, y)
    assert ece(probs, y) == pytest.approx(float(own), abs=1e-6)  # torchmetrics sums in float32
    for k in (1, 3):
        own = MulticlassAccuracy(C, top_k=k, average="micro")(probs, y)
        assert accuracy(probs, y, k) == pytest.approx(float(own), abs=1e-6)
    per_class = [float(BinaryCalibrationError(n_bins=15)(probs[:, c], (y == c).long())) for c in range(C)]
    assert classwise_ece(probs, y) == pytest.approx(sum(per_class) / C, abs=1e-6)


def test_states_of_two_processes_merge(logits: Tensor, y: Tensor) -> None:
    """What `dist_reduce_fx` does: sums are added, lists are joined."""
    for make, function in CASES.values():
        parts = [make(), make()]
        parts[0].update(logits[:, :200], y[:200])
        parts[1].update(logits[:, 200:], y[200:])
        parts[0].merge_state(parts[1])
        assert float(parts[0].compute()) == pytest.approx(function(logits, y), rel=1e-9)


def test_extreme_logits_and_one_network(logits: Tensor, y: Tensor) -> None:
    metric = classes.EnsembleNLL()
    metric.update(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))
    assert float(metric.compute()) == pytest.approx(2e4)
    zero = classes.EnsembleNLL(outputs="probs")
    zero.update(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert float(zero.compute()) == pytest.approx(87.3, abs=0.1)


def test_bad_input_is_explained() -> None:
    with pytest.raises(forde.FordeError, match="'logits' or 'probs'"):
        classes.EnsembleNLL(outputs="odds").update(torch.zeros(1, 2, 3), torch.tensor([0, 1]))
    with pytest.raises(forde.FordeError, match="k is 4"):
        classes.EnsembleAccuracy(k=4).update(torch.zeros(1, 2, 3), torch.tensor([0, 1]))
    with pytest.raises(forde.FordeError, match="members, batch, classes"):
        classes.EnsembleNLL().update(torch.zeros(3), torch.tensor([0]))
