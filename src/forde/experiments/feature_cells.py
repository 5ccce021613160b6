"""A cell of features: train perceptrons on them, evaluate on test, corrupted, shifted and foreign features."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from torch import Tensor

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.evaluation import evaluate_robustness
from forde.evaluation.robustness import Cell as Corrupted
from forde.experiments.cells import Cell
from forde.experiments.feature_data import feature_sets
from forde.experiments.image_cells import KEPT, RESAMPLES, scores_of, step_seconds
from forde.experiments.networks import network
from forde.experiments.places import Place
from forde.experiments.training_cells import train
from forde.hashing import array_name
from forde.prediction import ClassificationPrediction

PREDICTED = 4096
"""Samples predicted at once."""


def run_features(cell: Cell, place: Place) -> dict[str, Any]:
    """Everything that the transfer figure needs of one ensemble."""
    sets = feature_sets(cell, place)
    x, y = sets.train
    ensemble = Ensemble(network(cell.model, (x.shape[1],), sets.n_classes), cell.members, seed=cell.seed)
    trained = train(ensemble, cell, place, (x, y))
    started = time.perf_counter()
    cells = [Corrupted(name, level, partial(_pair, pair)) for (name, level), pair in sets.corrupted.items()]
    scored = partial(
        evaluate_robustness, ensemble, transform=_as_they_are, precision=cell.precision,  # type: ignore[arg-type]
        device=place.device, n_bootstrap=RESAMPLES, verbose=False,
    )  # fmt: skip
    result = scored(sets.test, cells)
    shifted = {}
    for name, pair in sets.shifted.items():
        clean = scored(pair).clean
        shifted[name] = {key: clean[key].value for key in KEPT}
    foreign = {name: {"epistemic": _epistemic(ensemble, pair[0])} for name, pair in sets.foreign.items()}
    found = scores_of(result) if cells else {"clean": {name: result.clean[name].value for name in KEPT}}
    return {
        **found,
        "shifted": shifted,
        "foreign": foreign,
        "history": trained.history.records,
        "seconds": {
            "training": trained.seconds,
            "evaluation": time.perf_counter() - started,
            "step": None if place.shared else step_seconds(trained.history.records, max(1, len(x) // cell.batch_size)),
        },
        "data": {"training": len(x), "test": len(sets.test[1]), "source": sets.source, "print": array_name(x, y)},
        "notes": trained.notes,
    }


def _pair(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair


def _as_they_are(features: Tensor) -> Tensor:
    return features


def _epistemic(ensemble: Ensemble, x: Tensor) -> float:
    prediction = ensemble.predict(x, batch_size=PREDICTED)
    if not isinstance(prediction, ClassificationPrediction):
        raise FordeError("epistemic uncertainty on foreign data is for classification.")
    return float(prediction.epistemic.mean())
