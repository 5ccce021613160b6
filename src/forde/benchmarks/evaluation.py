"""How long a whole robustness evaluation takes: members × (clean + 95 corrupted) × images."""

from __future__ import annotations

import time

import torch

from forde.data.inputs import normalise
from forde.ensemble import Ensemble
from forde.evaluation.robustness.cells import generated_cells
from forde.evaluation.robustness.evaluate import evaluate_robustness
from forde.evaluation.robustness.precision import EvaluationPrecision
from forde.models import resnet18


def benchmark_evaluation(
    device: str = "cuda",
    *,
    folder: str | None = None,
    n_members: int = 10,
    n_images: int = 10_000,
    severities: tuple[int, ...] = (1, 2, 3, 4, 5),
    precision: EvaluationPrecision = "bf16",
    batch_size: int | None = None,
    loaders: int | None = None,
) -> dict[str, float]:
    """Seconds to evaluate untrained ResNet18s on random CIFAR-sized images and all their generated corruptions.

    Includes making the corruptions, the forward passes, metrics, bootstrap and, with a folder, writing predictions.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n_images, 32, 32, 3), dtype=torch.uint8, generator=generator).to(device)
    labels = torch.randint(10, (n_images,), generator=generator)
    ensemble = Ensemble(lambda: resnet18(10), n_members).to(device)
    start = time.perf_counter()
    cells = generated_cells(images, labels, severities=severities)
    evaluate_robustness(
        ensemble,
        (images, labels),
        cells,
        folder=folder,
        transform=normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        precision=precision,
        batch_size=batch_size,
        loaders=loaders,
        verbose=False,
    )
    seconds = time.perf_counter() - start
    count = n_members * n_images * (1 + len(cells))
    return {"seconds": seconds, "member_images": count, "member_images_per_second": count / seconds}
