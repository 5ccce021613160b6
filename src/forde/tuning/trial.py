"""One trial: train an ensemble for each seed, and judge it on the validation split."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from forde.data.description import Images, Table
from forde.ensemble import Ensemble
from forde.methods import Method, method
from forde.step.records import Precision
from forde.training import Batching, Checkpointing, Reporting, Validation, fit
from forde.training.image_feed import Augmentation
from forde.training.usual import optimizer_options, usual_optimizer
from forde.tuning.judging import Judge, Judged

Report = Callable[[int, float], None]
"""Told of each epoch, from 0, and the NLL of perturbed samples after it."""


@dataclass(frozen=True)
class Training:
    """What is the same for every trial."""

    make_network: Callable[[], nn.Module]
    likelihood: str
    data: Images | Table
    """A table in standard units."""
    members: int
    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    seed: int
    seeds: int
    device: Any
    precision: Precision = "float32"
    engine: str = "auto"
    augment: bool = False

    def method(self, values: Mapping[str, float]) -> Method:
        """The recipe with these values; the deep ensemble where there are none."""
        weight_decay = values.get("weight_decay", self.weight_decay)
        if not values:
            return method("deep-ensemble", weight_decay=weight_decay)
        own: dict[str, Any] = {name: values[name] for name in ("strength", "alpha") if name in values}
        return method("forde", weight_decay=weight_decay, **own)

    def seed_of(self, place: int) -> int:
        """Members count on from the ensemble's seed, so that seeds next to each other would share members."""
        return self.seed + place * self.members

    def run(self, values: Mapping[str, float], place: int, mixed: Images | Table, folder: Path, report: Report) -> Any:
        """Train with the seed of this place, or go on with what is in the folder; returns the ensemble."""
        chosen, rate = self.method(values), values.get("lr", self.lr)
        seed = self.seed_of(place)
        ensemble = Ensemble(self.make_network, self.members, seed=seed, likelihood=self.likelihood)
        fit(
            ensemble, chosen, self.data, epochs=self.epochs, batch_size=self.batch_size, seed=seed, device=self.device,
            precision=self.precision, engine=self.engine, run=folder, resume=True,  # type: ignore[arg-type]
            callback=lambda record: report(int(record["epoch"]), record["validation_nll"]),
            # What fit measures after each epoch, on perturbed samples; the members end as after the last epoch.
            validation=Validation(mixed, restore_best=False),
            batches=Batching(augmentation=Augmentation() if self.augment else None),
            reporting=Reporting(verbose=False, diagnostics_every=0),
            checkpoint=Checkpointing(minutes=5, keep=1),
            **optimizer_options(usual_optimizer(self.data.description.n_classes), rate, self.epochs, chosen),
        )  # fmt: skip
        return ensemble


def train_and_judge(
    training: Training, values: Mapping[str, float], judge: Judge, folder: Path, report: Report
) -> tuple[np.ndarray, tuple[float, float] | None]:
    """−ln p̄(y) `[2, K, N]` of clean and of perturbed samples for each seed, and the mean accuracies.

    Args:
        folder: for checkpoints; it is removed when everything is known.
        report: told of the first seed only, which decides whether others are trained at all.
    """
    found: list[Judged] = []
    mixed = judge.mixed
    for place in range(training.seeds):
        told = report if place == 0 else _nobody
        found.append(judge(training.run(values, place, mixed, folder / f"seed-{place}", told)))
    shutil.rmtree(folder, ignore_errors=True)
    nll = np.stack([[one.clean for one in found], [one.corrupted for one in found]])
    pairs = [one.accuracy for one in found if one.accuracy is not None]
    accuracy = np.mean(pairs, axis=0) if pairs else None
    return nll, None if accuracy is None else (float(accuracy[0]), float(accuracy[1]))


def _nobody(epoch: int, value: float) -> None:
    """Listens to the epochs of later seeds."""
