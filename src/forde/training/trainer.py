"""`fit`: train an ensemble with a method on data."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from forde.data.description import Images, Table
from forde.engine import Engine, StepReport, make_engine
from forde.engine.base import Memory, Precision
from forde.engine.choose import EngineName
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods import Method
from forde.methods import method as named_method
from forde.priors import EmpCov, TrainingData
from forde.progress import progress_bar
from forde.training.diagnostics import probe
from forde.training.feed import Feed, make_feed
from forde.training.history import History, Record
from forde.training.image_feed import Augmentation, ImageFeed
from forde.training.schedule import paper_factor

log = logging.getLogger(__name__)

PROBE_SIZE = 128
NESTEROV_LIMIT = 1.36
"""Largest lr × curvature for which SGD with Nesterov momentum 0.9 converges on a quadratic."""
PATIENCE_WITH_ZERO_GRADIENTS = 3
"""A zero-initialised head makes the first input gradients vanish, but not the next ones."""


def fit(
    ensemble: Ensemble,
    method: Method | str,
    data: Any,
    *,
    epochs: int,
    batch_size: int = 128,
    lr: float = 0.1,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    memory: Memory = "speed",
    drop_last: bool = True,
    augmentation: Augmentation | None = None,
    independent_data: bool = False,
    diagnostics_every: int = 1,
    progress: bool = True,
    callback: Callable[[Record], None] | None = None,
) -> History:
    """Train all members together, in place.

    Args:
        ensemble: its members are trained where they are, or on `device`.
        method: a `Method` or the name of one.
        data: `(x, y)` as tensors or arrays, a Dataset of pairs, a DataLoader (its batches are used as they come), or
            what `forde.data.load` returns.
        epochs: passes over the data.
        batch_size: ignored for a DataLoader.
        lr: learning rate of the default optimiser, SGD with Nesterov momentum 0.9. Weight decay is the method's prior.
        optimizer: builds another from the parameters: `lambda p: torch.optim.Adam(p, lr=1e-3)`. The prior still acts.
        scheduler: builds a scheduler, stepped once per epoch; by default the paper's (constant to half of the epochs,
            linear to 1 % at 90 %) for the default optimiser and none for another.
        seed: fixes the order of the data and any dropout; the members' initialisation has the ensemble's own seed.
        precision: `"float32"` (whatever the members' dtype is), or `"bf16"` autocast.
        engine: how steps are run; `"auto"` vectorises small networks and loops over others, `"graphed"` replays the
            loop from a CUDA graph (for networks that do the same in every forward pass). All give the same numbers.
        memory: `"speed"` keeps every member's graph while members are compared; `"low"` keeps none and makes one
            member's forward pass after another again (a third more arithmetic), `"balanced"` does so for half of them.
        drop_last: leave out the last, smaller batch of an epoch (other samples each time).
        augmentation: random crops and flips of `forde.data.Images`, made on the device.
        independent_data: an order of its own for each member, as classical deep ensembles; only without repulsion.
        diagnostics_every: measure disagreement and gradient cosine every so many epochs; 0 for never.
        progress: show a bar on a terminal.
        callback: called with each epoch's record.

    Returns:
        The history, with the method as fitted to the data.

    >>> from torch import nn
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=3)
    >>> history = fit(ensemble, "forde-pca", (x, y), epochs=2, batch_size=32)
    >>> len(history), sorted(history.records[0])[:3]
    (2, ['bandwidth', 'disagreement', 'epoch'])
    """
    method = named_method(method) if isinstance(method, str) else method
    if epochs < 1:
        raise FordeError(f"epochs is {epochs}, but a whole number of at least 1 was expected.")
    if precision not in ("float32", "bf16"):
        raise FordeError(f"precision is {precision!r}, but 'float32' or 'bf16' was expected.")
    if independent_data and method.space is not None:
        raise FordeError("independent_data needs members that do not interact; use it with 'deep-ensemble' only.")
    target = available_device(device) if device is not None else ensemble.device
    ensemble.to(target)
    feed = _feed(data, ensemble, batch_size=batch_size, drop_last=drop_last, augmentation=augmentation)
    inputs = TrainingData(lambda: map(ensemble.as_input, feed.inputs()), feed.size)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        ensemble.train()
        _look_at_inputs(method, ensemble, next(iter(inputs.batches())))
        fitted = method.prepare(ensemble.members[0], inputs)
        if fitted.metric_note is not None:
            log.info("%s: %s", fitted.name, fitted.metric_note)
        history = History(fitted)
        runner = make_engine("eager" if independent_data else engine, ensemble, fitted, precision, memory)
        try:
            tuner, schedule = _optimiser(runner, fitted, epochs=epochs, lr=lr, optimizer=optimizer, scheduler=scheduler)
            orders = [torch.Generator().manual_seed(seed + i) for i in range(ensemble.n_members)]
            run_epoch = _EpochRunner(runner, tuner, feed.size, diagnostics_every)
            with progress_bar(epochs, fitted.name, show=progress) as advance:
                for epoch in range(epochs):
                    batches = _batches(feed, orders, ensemble, independent_data)
                    record = run_epoch(epoch, batches, last=epoch == epochs - 1)
                    if schedule is not None:
                        schedule.step()
                    history.records.append(record)
                    advance(f"loss {record['loss']:.3f}  repulsion {record['repulsion']:+.4f}")
                    if callback is not None:
                        callback(record)
        finally:
            runner.close()
            ensemble.zero_grad(set_to_none=True)
    ensemble.eval()
    return history


class _EpochRunner:
    """Steps through an epoch's batches and tells how it went; remembers the number of steps so far."""

    def __init__(self, runner: Engine, tuner: Optimizer, data_size: int, diagnostics_every: int) -> None:
        self.runner, self.tuner, self.data_size, self.diagnostics_every = runner, tuner, data_size, diagnostics_every
        self.guard = _ZeroGradientGuard(runner.method)
        self.steps = 0

    def __call__(self, epoch: int, batches: Iterator[tuple[Any, Any]], *, last: bool) -> Record:
        started, tally = time.perf_counter(), _Tally()
        lr = float(self.tuner.param_groups[0]["lr"])
        x = y = None
        for x, y in batches:
            report = self.runner.update(x, y, self.tuner, step=self.steps, epoch=epoch, data_size=self.data_size)
            self.guard.check(report)
            tally.add(report)
            self.steps += 1
        if x is None or y is None:
            raise FordeError("the loader yielded no batch; check its batch size, drop_last and sampler.")
        record = {"epoch": float(epoch), **tally.means(), "lr": lr}
        if self.diagnostics_every and (epoch % self.diagnostics_every == 0 or last):
            x, y = (x[0], y[0]) if isinstance(x, list) else (x, y)
            record.update(probe(self.runner.ensemble, x[:PROBE_SIZE], y[:PROBE_SIZE]))
        return {**record, "seconds": time.perf_counter() - started}


def _feed(
    data: Any, ensemble: Ensemble, *, batch_size: int, drop_last: bool, augmentation: Augmentation | None
) -> Feed:
    if isinstance(data, Images):
        ensemble.likelihood.check_targets(torch.as_tensor(data.labels))
        dtype = next((p.dtype for p in ensemble.parameters()), torch.get_default_dtype())
        return ImageFeed(
            data.images,
            data.labels,
            mean=data.description.mean,
            std=data.description.std,
            batch_size=batch_size,
            device=ensemble.device,
            dtype=dtype,
            augmentation=augmentation,
            drop_last=drop_last,
        )
    if augmentation is not None:
        raise FordeError("augmentation needs images as bytes, from forde.data.load or forde.data.Images.")
    pair = (data.x, data.y) if isinstance(data, Table) else data
    return make_feed(pair, ensemble, batch_size=batch_size, drop_last=drop_last)


def available_device(device: str | torch.device) -> torch.device:
    """The device asked for, if this machine has it."""
    try:
        target = torch.device(device)
    except RuntimeError:
        raise FordeError(f"unknown device '{device}'; expected 'cpu', 'cuda', 'cuda:0' or 'mps'.") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise FordeError("device 'cuda' was asked for, but torch sees no NVIDIA GPU here; use device='cpu'.")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise FordeError(
            f"device '{target}' was asked for, but torch sees {torch.cuda.device_count()} GPU(s); use 'cuda:0'."
        )
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise FordeError("device 'mps' was asked for, but torch sees no Apple GPU here; use device='cpu'.")
    return target


def _look_at_inputs(method: Method, ensemble: Ensemble, x: Tensor) -> None:
    if method.space is not None and method.space.needs_input_gradient and x[0].numel() == 1 and ensemble.n_members > 1:
        log.warning(
            "The inputs have one feature, so every input gradient points up or down and members do not repel; "
            "add a feature, for example (x, x²)."
        )


def _batches(
    feed: Feed, orders: list[torch.Generator], ensemble: Ensemble, independent: bool
) -> Iterator[tuple[Any, Any]]:
    """Batches on the members' device: one for all, or a list with one for each."""
    if not independent:
        for x, y in feed.epoch(orders[0]):
            yield ensemble.as_input(x), y.to(ensemble.device)
        return
    for pairs in zip(*(feed.epoch(order) for order in orders), strict=True):
        yield [ensemble.as_input(x) for x, _ in pairs], [y.to(ensemble.device) for _, y in pairs]


def _optimiser(
    runner: Engine,
    method: Method,
    *,
    epochs: int,
    lr: float,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None,
    scheduler: Callable[[Optimizer], LRScheduler] | None,
) -> tuple[Optimizer, LRScheduler | None]:
    if optimizer is None:
        tuner: Optimizer = torch.optim.SGD(runner.parameters(), lr=lr, momentum=0.9, nesterov=True)
        for prior in method.priors:
            if isinstance(prior, EmpCov) and lr * prior.max_curvature >= NESTEROV_LIMIT:
                raise FordeError(
                    f"the EmpCov prior's curvature {prior.max_curvature:.3g} times lr={lr} is above {NESTEROV_LIMIT}, "
                    "so SGD would diverge; lower lr or weight_decay, or raise EmpCov(epsilon=...)."
                )
        factory = scheduler or (lambda o: LambdaLR(o, lambda epoch: paper_factor(epoch, epochs)))
        return tuner, factory(tuner)
    tuner = optimizer(runner.parameters())
    if any(group.get("weight_decay") for group in tuner.param_groups) and any(p.on_weights for p in method.priors):
        warnings.warn(
            "Both the optimiser and the method's prior decay the weights; pass weight_decay=0 to one of them.",
            stacklevel=3,
        )
    return tuner, scheduler(tuner) if scheduler is not None else None


class _Tally:
    """Means over the steps of an epoch, fetched from the device once."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.repulsion: list[Tensor] = []
        self.bandwidth: list[Tensor] = []

    def add(self, report: StepReport) -> None:
        self.losses.append(report.losses.mean())
        self.repulsion.append(report.repulsion.mean())
        if report.bandwidth is not None:
            self.bandwidth.append(report.bandwidth)

    def means(self) -> Record:
        return {
            "loss": float(torch.stack(self.losses).mean()),
            "repulsion": float(torch.stack(self.repulsion).mean()),
            "bandwidth": float(torch.stack(self.bandwidth).mean()) if self.bandwidth else float("nan"),
        }


class _ZeroGradientGuard:
    """Stops a run whose members can never repel because their input gradients are zero from the start."""

    def __init__(self, method: Method) -> None:
        watched = method.space is not None and method.space.needs_input_gradient
        self.remaining = PATIENCE_WITH_ZERO_GRADIENTS if watched else 0

    def check(self, report: StepReport) -> None:
        if not self.remaining or report.z is None:
            return
        if bool(report.z.any()):
            self.remaining = 0
            return
        self.remaining -= 1
        if not self.remaining:
            raise FordeError(
                f"every input gradient was exactly zero in the first {PATIENCE_WITH_ZERO_GRADIENTS} steps, so members "
                "cannot be compared by them; make the network depend on its input (dead units? a detached input?)."
            )
