"""Training an ensemble on the rows of a table, and what is decided on rows that networks have not seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from forde.ensemble import Ensemble, of_networks
from forde.estimators.calibration import Calibrated
from forde.estimators.judge import MONITOR, Judge
from forde.estimators.left_out import LeftOut
from forde.likelihoods import Likelihood, Weighted
from forde.methods import Method
from forde.training import Batching, History, Reporting, Validation, fit
from forde.training.schedule import method_factor

Array = NDArray[Any]

DIAGNOSED_EPOCHS = 10
"""Disagreement of the members is measured about this often: on a small table it costs as much as an epoch."""
JUDGED_EPOCHS = 10
"""Networks are judged about this often: each time costs as much as some steps."""


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
    """Epochs without a better prediction of rows that networks have not seen, after which training stops."""
    falls: bool = True
    """Whether the learning rate falls towards the last epoch."""


@dataclass(frozen=True)
class Start:
    """Where training goes on that had ended, or was done in parts."""

    ensemble: Ensemble
    """All networks, twins as well."""
    dtype: torch.dtype
    """In which it is trained."""
    moments: dict[str, Any] | None = None
    """Of the optimizer, where it goes on as well."""


@dataclass(frozen=True)
class Trained:
    """What training comes to."""

    ensemble: Ensemble
    """The members, in float64 on the CPU."""
    history: History
    n_epochs: int
    """After which the networks were kept, or all."""
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

    Members and their twins, if there are any, are trained as one ensemble: a step of twenty small networks costs a
    third more than one of ten, where training them afterwards would cost as much again.

    Args:
        start: the networks to train further, which stay as they are; new ones if left out.
    """
    inputs, targets = torch.from_numpy(X), torch.from_numpy(y)
    of_rows = torch.ones(len(y)) if row_weights is None else torch.from_numpy(row_weights)
    weights = of_rows[rows.trained, None] * rows.seen
    trained_on, trained_y = likelihood, targets[rows.trained]
    if row_weights is not None or len(rows.judged):
        # Rows that a network sees weigh 1 on the mean, so that its loss is on the scale of prior and repulsion.
        trained_on, trained_y = Weighted.pack(likelihood, trained_y, weights / weights.mean(0))
    n_networks = rows.seen.shape[1]
    if start is None:
        ensemble, moments = Ensemble(make_network, n_networks, seed=options.seed), None
    else:
        ensemble = _of_as_many(copy.deepcopy(start.ensemble).to(start.dtype), n_networks)
        moments = start.moments if start.ensemble.n_members == n_networks else None
    ensemble.likelihood, dtype = trained_on, ensemble.dtype
    adam = _Adam(options.lr, moments)
    judge = validation = None
    if len(rows.judged):
        judged, judged_y = Weighted.pack(likelihood, targets[rows.judged], of_rows[rows.judged, None] * rows.by)
        lenient = options.patience is None
        judge = Judge(ensemble, judged, n_judged=rows.by.shape[1], n_members=options.n_members, lenient=lenient)
        validation = _judging(judge, (inputs[rows.judged], judged_y), options)
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
        validation=validation,
        callback=None if judge is None else judge.after_epoch,
        # Every row of a small table counts, but BatchNorm cannot normalise a batch of one.
        batches=Batching(drop_last=options.batch_size > 1 and len(rows.trained) % options.batch_size == 1),
        reporting=Reporting(
            verbose=bool(options.verbose), diagnostics_every=max(1, options.epochs // DIAGNOSED_EPOCHS)
        ),
    )
    kept = None if judge is None else judge.restore()
    ensemble.input_scale = None  # the estimator prepares all rows itself, also those that are unlike any of training
    ensemble.likelihood = likelihood
    ensemble.to(device="cpu", dtype=torch.float64)
    # The method as asked for: its fitted copy holds tensors on the training device.
    history = replace(history, method=options.method)
    members, end = _of_as_many(ensemble, options.n_members), Start(ensemble, dtype, adam.moments)
    if kept is None:
        return Trained(members, history, len(history), None, end)
    return Trained(members, history, kept.epoch + 1, kept.calibrated, end)


def _of_as_many(ensemble: Ensemble, n_networks: int) -> Ensemble:
    """The first so many networks; where there are fewer, copies of them follow, as twins that nobody has trained."""
    networks = list(ensemble.members)
    if len(networks) == n_networks:
        return ensemble
    copies = [copy.deepcopy(networks[i % len(networks)]) for i in range(n_networks - len(networks))]
    return of_networks(ensemble, [*networks, *copies][:n_networks])


def _judging(judge: Judge, rows: tuple[Tensor, Tensor], options: Options) -> Validation:
    """Judge networks by how well they could predict the rows that they have not seen, if calibrated."""
    every = max(1, -(-options.epochs // JUDGED_EPOCHS))
    if options.patience is not None:  # which shall not end with the first disappointment
        every = min(every, max(1, options.patience // 2))
    return Validation(
        rows, monitor=MONITOR, mode="min", every=every, measures=judge.measures, patience=options.patience,
        restore_best=False,
    )  # fmt: skip


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
