"""Which epoch's networks are kept, by how well rows are predicted that they have not seen."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from forde.ensemble import Ensemble
from forde.estimators.calibration import Calibrated, calibrated_for
from forde.likelihoods import Weighted
from forde.training import Record

MONITOR = "calibrated_nll"


class Kept(NamedTuple):
    """An epoch, counted from 0, with what was found after it."""

    epoch: int
    calibrated: Calibrated
    tensors: dict[str, Tensor]
    """Of all networks, on the CPU."""


class Judge:
    """Judges networks after epochs, and keeps the latest that are not clearly worse than the best.

    Clearly is by more than one standard error of the difference over the rows. The best of many epochs is partly the
    luckiest one, at a learning rate at which networks jump to and fro; later it is small, and they have settled.

    Args:
        ensemble: all networks; the first are the members, and the last ones are judged.
        likelihood: of rows with their weights for each network that is judged.
        n_judged: how many these are.
        n_members: how many will predict.
        lenient: whether epochs count that are a little worse than the best.
    """

    def __init__(
        self, ensemble: Ensemble, likelihood: Weighted, *, n_judged: int, n_members: int, lenient: bool
    ) -> None:
        self._ensemble, self._likelihood, self._lenient = ensemble, likelihood, lenient
        self._n_judged, self._n_members = n_judged, n_members
        self._found: Calibrated | None = None
        self._best: Calibrated | None = None
        self.kept: Kept | None = None

    def measures(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Measures of validation data: outputs `[A, N, ...]`, targets with weights `[N, T + B]`."""
        likelihood, targets, weights = self._likelihood.unpack(y, slice(0, self._n_judged))
        judged = likelihood.prediction(outputs[-self._n_judged :])
        self._found = calibrated_for(likelihood, judged, targets, weights, self._n_members)
        return {MONITOR: self._found.nll}

    def after_epoch(self, record: Record) -> None:
        """Keep the networks of this epoch if they were measured and are good enough."""
        found = self._found
        if f"validation_{MONITOR}" not in record or found is None or math.isnan(found.nll):
            return
        if self._best is not None:
            worse, error = found.worse_than(self._best)
            if worse > (error if self._lenient else 0.0):
                return
        if self._best is None or found.nll < self._best.nll:
            self._best = found
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._ensemble.member_tensors().items()}
        self.kept = Kept(int(record["epoch"]), found, tensors)

    @torch.no_grad()
    def restore(self) -> Kept | None:
        """Give the networks what they had after the kept epoch; None where no epoch could be judged."""
        if self.kept is not None:
            for name, tensor in self._ensemble.member_tensors().items():
                tensor.copy_(self.kept.tensors[name])
        return self.kept
