"""A cell of images: train, evaluate on clean and corrupted test images, compare the members' input gradients."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde.data.inputs import normalise
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.evaluation import RobustnessResult, evaluate_robustness, gradient_cosine_distance
from forde.experiments.cells import Cell
from forde.experiments.image_data import TestSets, data_print, test_sets, training_images
from forde.experiments.networks import network
from forde.experiments.places import Place
from forde.experiments.training_cells import train
from forde.training import Augmentation

COMPARED = 50
"""Images of each corruption at which members' input gradients are compared; twenty times as many clean ones."""
KEPT = ("accuracy", "nll", "ece", "brier", "epistemic", "aleatoric", "disagreement")
KEPT_OF_CELLS = ("accuracy", "nll", "ece", "epistemic", "disagreement")
RESAMPLES = 100


def run_images(cell: Cell, place: Place) -> dict[str, Any]:
    """Everything that tables and figures need of one ensemble."""
    data = training_images(cell, place)
    described = data.description
    before = torch.cuda.memory_allocated() if place.on_gpu else 0  # test sets of cells before this one
    if place.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ensemble = Ensemble(network(cell.model, described.shape, described.n_classes), cell.members, seed=cell.seed)
    trained = train(
        ensemble, cell, place, data, augmentation=Augmentation() if cell.augment else None
    )  # fmt: skip
    memory = (torch.cuda.max_memory_allocated() - before) / 2**30 if place.on_gpu else None
    started = time.perf_counter()
    sets = test_sets(cell, place)
    result = evaluate_robustness(
        ensemble, (sets.images, sets.labels), sets.corrupted,
        transform=normalise(described.mean, described.std), precision=cell.precision,  # type: ignore[arg-type]
        device=place.device, n_bootstrap=RESAMPLES, verbose=False,
    )  # fmt: skip
    evaluated = time.perf_counter()
    distances, remark = gradient_distances(ensemble, sets, normalise(described.mean, described.std))
    ended = time.perf_counter()
    steps = max(1, len(data) // cell.batch_size)
    del ensemble
    if place.on_gpu:
        gc.collect()  # before the next cell needs the memory
        torch.cuda.empty_cache()
    return {
        **scores_of(result),
        "gradient_distance": distances,
        "history": trained.history.records,
        "seconds": {
            "training": trained.seconds,
            "evaluation": evaluated - started,
            "gradients": ended - evaluated,
            "step": None if place.shared else step_seconds(trained.history.records, steps),
        },
        "peak_gib": memory,
        "data": {
            "training": len(data), "test": len(sets.labels), "source": data.source,
            "print": data_print(cell.data, place.data), "corrupted": sets.source,
        },
        "notes": [*trained.notes, *([remark] if remark else [])],
    }  # fmt: skip


def scores_of(result: RobustnessResult) -> dict[str, Any]:
    """The parts of an evaluation that are kept, as plain numbers."""
    return {
        "clean": _values(result.clean, KEPT),
        "errors": {
            "clean": {name: result.clean[name].error for name in KEPT_OF_CELLS},
            "pooled": {name: result.pooled[name].error for name in KEPT_OF_CELLS},
        },
        "pooled": _values(result.pooled, KEPT),
        "cell_average": _values(result.cell_average, KEPT),
        "severities": {str(level): _values(scores, KEPT) for level, scores in result.severities.items()},
        "corruptions": {
            name: {str(level): _values(scores, KEPT_OF_CELLS) for level, scores in levels.items()}
            for name, levels in result.cells.items()
        },
    }


def _values(scores: Any, names: tuple[str, ...]) -> dict[str, float]:
    return {name: scores[name].value for name in names}


def gradient_distances(
    ensemble: Ensemble, sets: TestSets, transform: Any, compared: int = COMPARED
) -> tuple[dict[str, float] | None, str | None]:
    """Mean 1 − cos of the members' input gradients by severity, 0 for clean images; else None and why.

    Each corruption is looked at through other images, the first few for the first corruption and so on.
    """
    n = len(sets.labels)
    levels = sorted({each.severity for each in sets.corrupted})
    found: dict[str, float] = {}
    try:
        for level in (0, *levels):
            parts: list[Tensor] = []
            labels: list[np.ndarray] = []
            here = [each for each in sets.corrupted if each.severity == level]
            if level == 0:
                chosen = np.arange(min(n, 20 * compared))
                parts, labels = [sets.images[: len(chosen)]], [sets.labels[chosen]]
            for index, each in enumerate(here):
                rows = np.arange(index * compared, (index + 1) * compared) % n
                images, own = each.load()
                take = torch.from_numpy(rows)
                parts.append(torch.as_tensor(images)[take.to(images.device) if isinstance(images, Tensor) else take])
                labels.append(np.asarray(own)[rows])
            x = transform(torch.cat([part.to(sets.images.device) for part in parts]))
            found[str(level)] = gradient_cosine_distance(ensemble, x, torch.from_numpy(np.concatenate(labels)))
    except FordeError as error:
        return None, f"input gradients were not compared: {error}"
    return found, None


def step_seconds(records: list[dict[str, float]], steps: int) -> float | None:
    """Seconds of a step: the median over epochs but the first, in which the step is compiled.

    >>> step_seconds([{"seconds": 9.0}, {"seconds": 2.0}, {"seconds": 4.0}], 10)
    0.3
    """
    later = [record["seconds"] for record in records[1:] if "seconds" in record]
    return float(np.median(later)) / steps if later else None
