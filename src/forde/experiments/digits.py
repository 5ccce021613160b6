"""Ensembles on the digits, measured on clean and on corrupted test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forde.data.digits import Digits, digits
from forde.ensemble import Ensemble
from forde.evaluation import accuracy, ece, nll
from forde.methods import method
from forde.models import MLP
from forde.prediction import ClassificationPrediction
from forde.training import fit

SEVERITIES = (1, 3, 5)
METRICS = ("accuracy", "NLL", "ECE", "MI")


@dataclass(frozen=True)
class Result:
    """What one ensemble scored."""

    method: str
    seed: int
    clean: dict[str, float]
    corrupted: dict[str, float]
    probs: Tensor
    """`[T, 10]` on the corrupted test images, for a reliability diagram."""
    labels: Tensor
    """`[T]`."""


def scores(prediction: ClassificationPrediction, labels: Tensor) -> dict[str, float]:
    """Accuracy, negative log-likelihood, calibration error and mean mutual information (nats)."""
    return {
        "accuracy": accuracy(prediction.probs, labels),
        "NLL": nll(prediction.member_logits, labels),
        "ECE": ece(prediction.probs, labels),
        "MI": float(prediction.epistemic.mean()),
    }


def corrupted_digits(data: Digits, seed: int) -> tuple[np.ndarray, Tensor]:
    """All corruption types at severities 1, 3 and 5 of the test images: uint8 `[K·T, 8, 8]` and labels `[K·T]`."""
    from forde.corruptions import NAMES, corrupt

    sets = [corrupt(data.test_images, name, severity, seed=seed) for name in NAMES for severity in SEVERITIES]
    return np.concatenate(sets), data.test_labels.repeat(len(sets))


def compare(
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    members: int = 10,
    epochs: int = 60,
) -> list[Result]:
    """Train each method with each seed; seeds share split, corruptions, initialisation and order between methods."""
    results = []
    for seed in seeds:
        data = digits(seed)
        images, labels = corrupted_digits(data, seed)
        x, x_test, x_corrupted = (data.scaled(part) for part in (data.train_images, data.test_images, images))
        for name in names:
            ensemble = Ensemble(lambda: MLP(64, [128, 128], 10), members, seed=seed)
            fit(ensemble, method(name), (x, data.train_labels), epochs=epochs, seed=seed, diagnostics_every=0)
            clean, shifted = ensemble.predict(x_test), ensemble.predict(x_corrupted, batch_size=8192)
            assert isinstance(clean, ClassificationPrediction) and isinstance(shifted, ClassificationPrediction)
            results.append(
                Result(name, seed, scores(clean, data.test_labels), scores(shifted, labels), shifted.probs, labels)
            )
    return results


def mean_and_std(results: Sequence[Result], name: str, where: str, metric: str) -> tuple[float, float]:
    """Over seeds, of one metric of one method on `"clean"` or `"corrupted"` images."""
    values = torch.tensor([getattr(r, where)[metric] for r in results if r.method == name], dtype=torch.float64)
    return float(values.mean()), float(values.std()) if len(values) > 1 else 0.0
