"""The training loop, which can be left after any step and taken up again there, in this process or in another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forde.arguments import Input
from forde.ensemble import Ensemble
from forde.errors import FordeError, NonFiniteError
from forde.methods import Method
from forde.methods.plan import Plan
from forde.random_state import get_random_state, random_tensors, set_random_state, set_random_tensors, source_state
from forde.step import Step, StepReport
from forde.torch_private import mark_as_stepped
from forde.training.averaging import WeightAverage
from forde.training.checkpoints import with_prefix
from forde.training.diagnostics import probe
from forde.training.feed import Feed
from forde.training.history import Record
from forde.training.numerics import CarefulStep, NonFinite, refuse_non_finite_weights
from forde.training.repulsion_feed import RepulsionFeed
from forde.training.schedule import Schedule
from forde.training.validating import Validator
from forde.turns import give_way, waiting

log = logging.getLogger(__name__)

PROBE_SIZE = 128
PATIENCE_WITH_ZERO_GRADIENTS = 3
"""A zero-initialised head makes the first input gradients vanish, but not the next ones."""


class Loop:
    """Epochs of steps, and where they stand.

    The order of an epoch's batches is drawn when it begins. So a position within it is: the state of all random numbers
    at its beginning, from which the batches are drawn again, the number of those that were used, and the state of all
    random numbers now.
    """

    def __init__(
        self,
        engine: Step,
        optimizer: Optimizer,
        schedule: Schedule | None,
        feed: Feed,
        *,
        seed: int,
        independent_data: bool,
        diagnostics_every: int,
        non_finite: NonFinite,
        plan: Plan | None = None,
        validator: Validator | None = None,
        repel_on: RepulsionFeed | None = None,
        average: WeightAverage | None = None,
    ) -> None:
        self.engine, self.optimizer, self.schedule, self.feed = engine, optimizer, schedule, feed
        self.ensemble: Ensemble = engine.whole
        self.plan = plan or Plan(self.ensemble, engine.method)
        self.validator, self.repel_on, self.average = validator, repel_on, average
        self.independent_data, self.diagnostics_every, self.non_finite = independent_data, diagnostics_every, non_finite
        self.orders = [torch.Generator().manual_seed(seed + i) for i in range(self.ensemble.n_members)]
        self.other_order = torch.Generator().manual_seed(seed)
        """Of the data of `repel_on`."""
        self.patience = _patience(engine.method)
        self.careful = None if non_finite == "stop" else CarefulStep(engine, optimizer)
        self.records: list[Record] = []
        self.losses: Tensor | None = None
        """`[M]` of the last step; None where it was skipped."""
        self.stopped: str | None = None
        """Why training ends before its last epoch."""
        self.epoch = self.steps = self.roll_backs = 0
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.step = self.skipped = 0
        self.seconds = self.lr = 0.0
        """Time spent in the epoch, and the learning rate at its beginning."""
        self.tally = Tally()
        self.beginning = {
            **{f"random.{name}": state for name, state in random_tensors(self.ensemble.device).items()},
            **{f"order.{i}": source_state(order) for i, order in enumerate(self.generators())},
        }

    def generators(self) -> list[torch.Generator]:
        """Sources of the order of the data."""
        other = [] if self.repel_on is None else [self.other_order, *self.repel_on.feed.generators()]
        return [*self.orders, *self.feed.generators(), *other]

    def run_epoch(self, *, last: bool, after_step: Callable[[], None] | None = None) -> Record:
        """The rest of the current epoch.

        Args:
            last: whether it is the last one, which is always diagnosed.
            after_step: called when a step is done and the next batch not yet drawn.
        """
        started, before = time.perf_counter(), self.seconds
        if not self.step:
            self.lr = float(self.optimizer.param_groups[0]["lr"])
        self.plan.before_epoch(self.epoch)
        batches = self._batches()
        others = None if self.repel_on is None else self.repel_on.epoch(self.other_order)
        x, y = self._again(batches, others) if self.step else (None, None)
        for x, y in () if self.stopped else batches:
            self._step(x, y, None if others is None else next(others))
            self.seconds = before + time.perf_counter() - started
            if after_step is not None:
                after_step()
            if waiting:
                give_way()
            if self.stopped is not None:
                break
        if x is None or y is None:
            raise FordeError("the loader yielded no batch; check its batch size, drop_last and sampler.")
        if not self.tally.losses:
            raise NonFiniteError(f"every step of epoch {self.epoch} was skipped; lower lr or check the inputs.")
        self.engine.settle()
        self.engine.collect()
        refuse_non_finite_weights(self.ensemble, epoch=self.epoch)
        record = {"epoch": float(self.epoch), **self.tally.means(), "lr": self.lr}
        if self.non_finite == "skip":
            record["skipped"] = float(self.skipped)
        if self.non_finite == "roll_back":
            record["roll_backs"] = float(self.roll_backs)
        if self.diagnostics_every and (self.epoch % self.diagnostics_every == 0 or last):
            x, y = (x[0], y[0]) if isinstance(x, list) else (x, y)
            at_once = None if self.engine.whole is not self.engine.runner.ensemble else self.engine.runner.at_once
            space = self.engine.method.space
            of = None if space is None else space.gradients_of
            record.update(probe(self.ensemble, x[:PROBE_SIZE], y[:PROBE_SIZE], of=of, at_once=at_once))
        record.update(self.plan.after_epoch(self.epoch))
        if self.validator is not None and self.validator.is_due(self.epoch, last=last):
            with nullcontext() if self.average is None else self.average.instead():
                record.update(self.validator.measure())
                self.stopped = self.validator.note(self.epoch, record) or self.stopped
        record["seconds"] = before + time.perf_counter() - started
        if self.schedule is not None:
            self.schedule.after_epoch(record)
        self.records.append(record)
        self.epoch += 1
        self._begin_epoch()
        return record

    def _step(self, x: Any, y: Any, other: Input | None) -> None:
        step: dict[str, Any] = {"step": self.steps, "epoch": self.epoch, "data_size": self.feed.size}
        if other is not None and self.repel_on is not None:
            step["repel_on"] = partial(self.repel_on.with_labels, other)
        self.losses = None
        try:
            if self.careful is None:
                report = self.engine.update(x, y, self.optimizer, **step)
            else:
                report = self.careful(x, y, **step)
        except NonFiniteError as error:
            if self.non_finite != "skip":
                raise
            log.warning("step skipped: %s", error)
            self.skipped += 1
        else:
            if self.patience:
                self._refuse_zero_gradients(report, y)
            self.tally.add(report)
            self.losses = report.losses
            if self.average is not None:
                self.average.update()
        if self.schedule is not None and self.schedule.every == "step":
            mark_as_stepped(self.optimizer)  # also where the step was skipped
            self.schedule.scheduler.step()
        self.step += 1
        self.steps += 1

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        """Batches on the members' device: one for all, or a list with one for each."""
        if not self.independent_data:
            batches = self.feed.epoch(self.orders[0])
            return (self.plan.batch(x, y) for x, y in batches) if self.plan.makes_members else batches
        columns = zip(*(self.feed.epoch(order) for order in self.orders), strict=True)
        return (([x for x, _ in pairs], [y for _, y in pairs]) for pairs in columns)

    def _again(self, batches: Iterator[tuple[Any, Any]], others: Iterator[Input] | None) -> tuple[Any, Any]:
        """Draw the batches of this epoch that were used already, and return the last of them.

        Args:
            others: those of other data, of which each step took one too.
        """
        now = get_random_state(self.ensemble.device)
        set_random_tensors(with_prefix(self.beginning, "random."), self.ensemble.device)
        batch = None
        for done in range(self.step):
            batch = next(batches, None)
            if batch is None:
                raise FordeError(
                    f"the loader yielded {done} batches where the interrupted run had {self.step}; give the same data."
                )
            if others is not None:
                next(others)
        set_random_state(now)
        assert batch is not None
        return batch

    def _refuse_zero_gradients(self, report: StepReport, y: Tensor) -> None:
        """Stop a run whose members can never repel because their input gradients are zero from the start."""
        if report.z is None:
            return
        if bool(report.z.any()):
            self.patience = 0
            return
        self.patience -= 1
        if not self.patience:
            labels = self.ensemble.likelihood.labels(y)
            if labels is not None and not labels.numel():
                raise FordeError(
                    f"no target in the first {PATIENCE_WITH_ZERO_GRADIENTS} batches has a label: all are to be "
                    "ignored, so there is nothing to compare members by; shuffle the data, or fix ignore_index."
                )
            raise FordeError(
                f"every input gradient was exactly zero in the first {PATIENCE_WITH_ZERO_GRADIENTS} steps, so members "
                "cannot be compared by them; make the network depend on its input (dead units? a detached input?)."
            )


def _patience(method: Method) -> int:
    """For how many steps all input gradients may be zero; 0 where nobody looks at them."""
    watched = method.space is not None and method.space.needs_input_gradient
    return PATIENCE_WITH_ZERO_GRADIENTS if watched else 0


class Tally:
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
