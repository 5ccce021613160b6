"""Training an ensemble on the rows of a table, and what is decided on rows that members have not seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from forde.ensemble import Ensemble
from forde.estimators.calibration import Calibrated, as_measures, calibrated_for
from forde.estimators.left_out import LeftOut
from forde.likelihoods import Likelihood, Weighted
from forde.methods import Method
from forde.training import Batching, History, Reporting, Validation, fit
from forde.training.schedule import method_factor

Array = NDArray[Any]

DIAGNOSED_EPOCHS = 10
"""Disagreement of the members is measured about this often: on a small table it costs as much as an epoch."""
JUDGED_EPOCHS = 20
"""Members are judged at most this often: each time costs about as much as a step."""


@dataclass(frozen=True)
class Options:
    """How an ensemble is trained, as the estimators are asked for it."""

    n_members: int
    method: Method
    epochs: int
    batch_size: int
    lr: float
    seed: int
    device: str | torch.device | None
    verbose: bool
    patience: int | None = None
    """Epochs without a better prediction of rows that members have not seen, after which training stops."""
    falls: bool = True
    """Whether the learning rate falls towards the last epoch."""


@dataclass(frozen=True)
class Start:
    """Where training goes on that had ended, or was done in parts."""

    ensemble: Ensemble
    dtype: torch.dtype
    """In which it is trained."""
    moments: dict[str, Any] | None = None
    """Of the optimizer, where it goes on as well."""


@dataclass(frozen=True)
class Trained:
    """What training comes to."""

    ensemble: Ensemble
    """In float64 on the CPU."""
    history: History
    n_epochs: int
    """After which the ensemble was best, or all."""
    calibrated: Calibrated | None
    start: Start
    """From which it can go on."""


def train(
    X: Array,
    y: Array,
    row_weights: Array | None,
    *,
    make_network: Callable[[], nn.Module],
    likelihood: Likelihood,
    rows: LeftOut,
    options: Options,
    start: Start | None = None,
) -> Trained:
    """Train on standardised rows `[N, D]` and targets ready for the likelihood, weighted by `row_weights` `[N]`.

    Args:
        start: the ensemble to train further, which stays as it is; a new one if left out.
    """
    inputs, targets = torch.from_numpy(X), torch.from_numpy(y)
    of_rows = torch.ones(len(y)) if row_weights is None else torch.from_numpy(row_weights)
    weights = of_rows[rows.trained, None] * rows.seen
    trained_on, trained_y = likelihood, targets[rows.trained]
    if row_weights is not None or len(rows.judged):
        # Rows that a member sees weigh 1 on the mean, so that its loss is on the scale of prior and repulsion.
        trained_on, trained_y = Weighted.pack(likelihood, trained_y, weights / weights.mean(0))
    if start is None:
        ensemble = Ensemble(make_network, options.n_members, seed=options.seed)
    else:
        ensemble = copy.deepcopy(start.ensemble).to(start.dtype)
    ensemble.likelihood, dtype = trained_on, ensemble.dtype
    adam = _Adam(options.lr, None if start is None else start.moments)
    held = None
    if len(rows.judged):
        judges, held_y = Weighted.pack(likelihood, targets[rows.judged], of_rows[rows.judged, None] * rows.by)
        held = inputs[rows.judged], held_y
    history = fit(
        ensemble,
        options.method,
        (inputs[rows.trained], trained_y),
        epochs=options.epochs,
        batch_size=options.batch_size,
        optimizer=adam,
        scheduler=_falling(options) if options.falls else None,
        seed=options.seed,
        device=options.device,
        validation=None if held is None else _judging(judges, held, options),
        # Every row of a small table counts, but BatchNorm cannot normalise a batch of one.
        batches=Batching(drop_last=options.batch_size > 1 and len(rows.trained) % options.batch_size == 1),
        reporting=Reporting(
            verbose=bool(options.verbose), diagnostics_every=max(1, options.epochs // DIAGNOSED_EPOCHS)
        ),
    )
    ensemble.likelihood = likelihood
    ensemble.to(device="cpu", dtype=torch.float64)
    # The method as asked for: its fitted copy holds tensors on the training device.
    history = replace(history, method=options.method)
    end = Start(ensemble, dtype, adam.moments)
    if held is None or history.best_epoch is None:
        return Trained(ensemble, history, len(history), None, end)
    _, y_held, by = judges.unpack(held[1], slice(0, options.n_members))
    found = calibrated_for(likelihood, ensemble.predict(held[0]), y_held, by)
    return Trained(ensemble, history, history.best_epoch + 1, found, end)


def _judging(judges: Weighted, held: tuple[Tensor, Tensor], options: Options) -> Validation:
    """Judge the members by how well they could predict the rows that they have not seen, if calibrated."""
    every, measures = max(1, -(-options.epochs // JUDGED_EPOCHS)), partial(as_measures, judges)
    return Validation(
        held, monitor="calibrated_nll", mode="min", every=every, measures=measures, patience=options.patience
    )


def _falling(options: Options) -> Callable[[torch.optim.Optimizer], LambdaLR]:
    return lambda optimizer: LambdaLR(optimizer, method_factor(options.method, options.epochs, options.lr))


class _Adam:
    """Makes the optimizer, with the moments that it had before."""

    def __init__(self, lr: float, moments: dict[str, Any] | None) -> None:
        self._lr, self._before = lr, moments

    def __call__(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        self._made = torch.optim.Adam(parameters, lr=self._lr)
        if self._before is not None:
            self._made.load_state_dict({**self._made.state_dict(), "state": self._before})
        return self._made

    @property
    def moments(self) -> dict[str, Any]:
        """As they are now."""
        return self._made.state_dict()["state"]
