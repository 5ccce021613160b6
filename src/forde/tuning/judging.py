"""The validation split as trials are judged by it: clean, perturbed, and each sample's −ln p̄(y) under both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from forde.corruptions import NAMES
from forde.data.description import Images, Table
from forde.ensemble import Ensemble
from forde.errors import FordeError, NonFiniteError
from forde.evaluation.runs.table_shifts import SHIFTS
from forde.metrics.classification import nll_per_sample
from forde.metrics.regression import gaussian_mixture_nll_per_sample
from forde.prediction import ClassificationPrediction, Prediction, RegressionPrediction
from forde.tuning.perturbations import IMAGE_PERTURBATIONS, LEVELS, perturbed
from forde.tuning.row_perturbations import ROW_PERTURBATIONS, perturbed_rows

MOST = 5000
"""Samples that trials are judged by; more would cost time and bring little."""


@dataclass(frozen=True)
class Judged:
    """What a trained ensemble makes of the validation split."""

    clean: np.ndarray
    """−ln p̄(y) of each sample `[N]`, in nats; a quantity's is that of the standardised target."""
    corrupted: np.ndarray
    """Its mean over perturbations and levels `[N]`."""
    accuracy: tuple[float, float] | None
    """Clean, and the mean over perturbations; None for a quantity."""


@dataclass(frozen=True)
class Judge:
    """Held-out samples, and what they go through.

    >>> import forde
    >>> digits = forde.data.load("digits", "test")
    >>> judge = Judge.of(digits, seed=0)
    >>> ensemble = forde.Ensemble(lambda: forde.models.MLP(64, [8], 10), 2, inputs=forde.data.Inputs.of(digits))
    >>> judged = judge(ensemble)
    >>> judged.clean.shape, judged.corrupted.shape
    ((899,), (899,))
    """

    held: Images | Table
    """A table in standard units."""
    seed: int

    @classmethod
    def of(cls, held: Images | Table, *, seed: int) -> Judge:
        """The first `MOST` of the held-out samples in a random order, or all where there are fewer."""
        if len(held) > MOST:
            chosen = np.sort(np.random.default_rng(seed).permutation(len(held))[:MOST])
            held = _rows(held, chosen)
        return cls(held, seed)

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Perturbation and level."""
        names = list(IMAGE_PERTURBATIONS) if isinstance(self.held, Images) else list(ROW_PERTURBATIONS)
        if tested := {*NAMES, *SHIFTS} & set(names):
            raise FordeError(f"'{min(tested)}' is a test corruption, so nothing may be chosen under it; rename yours.")
        return [(name, level) for name in names for level in LEVELS]

    @property
    def mixed(self) -> Images | Table:
        """Each sample under one perturbation of its own: one pass shows how a training comes on."""
        of = np.random.default_rng([self.seed, 1]).integers(len(self.kinds), size=len(self.held))
        values = np.array(_values(self.held))
        for number, (name, level) in enumerate(self.kinds):
            here = np.flatnonzero(of == number)
            if len(here):
                values[here] = _values(self._under(_rows(self.held, here), name, level))
        return _with(self.held, values)

    def __call__(self, ensemble: Ensemble) -> Judged:
        """Predict for the clean samples and for all perturbed ones."""
        clean, right = _scored(ensemble, self.held)
        if not np.isfinite(clean).all():
            raise NonFiniteError("the trained members give no finite NLL on the validation split")
        found = [_scored(ensemble, data) for data in self._perturbed()]
        corrupted = np.mean([nll for nll, _ in found], axis=0)
        accuracy = None if right is None else (right, float(np.mean([share for _, share in found])))
        return Judged(clean, corrupted, accuracy)

    def _perturbed(self) -> Iterator[Images | Table]:
        return (self._under(self.held, name, level) for name, level in self.kinds)

    def _under(self, data: Images | Table, name: str, level: int) -> Images | Table:
        change = perturbed if isinstance(data, Images) else perturbed_rows
        return _with(data, change(_values(data), name, level, seed=self.seed))


def _values(data: Images | Table) -> np.ndarray:
    return data.images if isinstance(data, Images) else data.x


def _with(data: Images | Table, values: np.ndarray) -> Images | Table:
    return replace(data, images=values) if isinstance(data, Images) else replace(data, x=values)


def _rows(data: Images | Table, index: np.ndarray) -> Images | Table:
    if isinstance(data, Images):
        return replace(data, images=data.images[index], labels=data.labels[index])
    return replace(data, x=data.x[index], y=data.y[index])


def _scored(ensemble: Ensemble, data: Images | Table) -> tuple[np.ndarray, float | None]:
    """−ln p̄(y) of each sample `[N]`, and the share of classes that are right."""
    prediction = ensemble.predict(data)
    y = torch.from_numpy(np.array(data.labels if isinstance(data, Images) else data.y))
    right = None
    if isinstance(prediction, ClassificationPrediction):
        right = float((prediction.labels == y).double().mean())
    return nll_of_each(prediction, y).numpy(), right


def nll_of_each(prediction: Prediction, y: Tensor) -> Tensor:
    """−ln p̄(y) of each sample `[N]`, float64.

    >>> nll_of_each(ClassificationPrediction(torch.zeros(3, 1, 2)), torch.tensor([0]))
    tensor([0.6931], dtype=torch.float64)
    """
    if isinstance(prediction, ClassificationPrediction):
        return nll_per_sample(prediction.member_logits, y.long())
    if isinstance(prediction, RegressionPrediction):
        return gaussian_mixture_nll_per_sample(prediction.member_means, prediction.member_variances, y)
    raise FordeError(
        f"a strength is chosen by NLL, which a {type(prediction).__name__} has none of; tune a classification or a "
        "regression."
    )
