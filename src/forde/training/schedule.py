"""How the learning rate changes: the paper's schedule, and schedulers of one's own with when they are stepped."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from forde.errors import FordeError
from forde.methods import Method
from forde.torch_private import schedulers_in

log = logging.getLogger(__name__)

Every = Literal["epoch", "step"]
SchedulerFactory = Callable[..., LRScheduler]
"""Of `(optimizer)`, or of `(optimizer, total_steps)`."""
TOTALS = ("total_steps", "T_max")
"""What classes of torch call the number of steps; the second argument of others is something else."""
EXAMPLE = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)"
EXAMPLE_OF_TOTAL = "lambda optimizer, total_steps: OneCycleLR(optimizer, 0.1, total_steps)"


def paper_factor(epoch: int, epochs: int, *, start: float = 0.5, end: float = 0.9, last: float = 0.01) -> float:
    """Factor of the learning rate in an epoch, with t = epoch/epochs: 1 to t = ½, linear to 0.01 at t = 0.9, then 0.01.

    >>> [round(paper_factor(epoch, 300), 4) for epoch in (0, 150, 210, 270, 299)]
    [1.0, 1.0, 0.505, 0.01, 0.01]
    """
    t = epoch / epochs
    if t <= start:
        return 1.0
    if t >= end:
        return last
    return 1.0 - (1.0 - last) * (t - start) / (end - start)


def method_factor(method: Method, epochs: int, lr: float) -> Callable[[int], float]:
    """The factor of `lr` by epoch that a method wants where nobody says otherwise: the paper's for most.

    >>> from forde import method
    >>> swag = method_factor(method("swag", swa_lr=0.02), 300, lr=0.1)
    >>> [round(0.1 * swag(epoch), 4) for epoch in (0, 80, 145, 299)]
    [0.1, 0.1, 0.02, 0.02]
    """
    over, last = method.falling(epochs, lr)
    return lambda epoch: paper_factor(epoch, over, last=last)


@dataclass(frozen=True)
class Length:
    """How long a run is."""

    epochs: int
    steps: int | None
    """Of each epoch; None where nobody knows before the batches are drawn."""

    def times(self, every: Every) -> int | None:
        """How often a scheduler is stepped.

        >>> Length(3, 10).times("step"), Length(3, None).times("step")
        (30, None)
        """
        return self.epochs if every == "epoch" else None if self.steps is None else self.epochs * self.steps


@dataclass(frozen=True)
class Watched:
    """The value on the validation data that decides."""

    key: str
    """In records."""
    higher_is_better: bool


@dataclass(frozen=True)
class Schedule:
    """A scheduler, and when it is stepped."""

    scheduler: LRScheduler
    every: Every = "epoch"
    of_total: bool = False
    """Whether it was made for a number of epochs, so that a longer run would have had another one from the start."""
    monitor: str | None = None
    """The value in records that it is told, where it wants one."""

    def fixed(self, length: Length) -> str | None:
        """Why a run of this length cannot become a longer one, which would have had another schedule; None if it can.

        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> Schedule(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)).fixed(Length(3, 10))
        'its CosineAnnealingLR ends with it'
        >>> Schedule(torch.optim.lr_scheduler.StepLR(optimizer, 30)).fixed(Length(3, 10)) is None
        True
        """
        if self.of_total:
            return "its learning rate falls over all of its epochs"
        end = length.times(self.every)
        ending = next((one for one in _parts(self.scheduler) if any(vars(one).get(n) == end for n in TOTALS)), None)
        return None if ending is None or end is None else f"its {type(ending).__name__} ends with it"

    def after_epoch(self, record: dict[str, float]) -> None:
        """Step it where it is stepped after epochs."""
        if self.every == "step":
            return
        if self.monitor is None:
            self.scheduler.step()
        elif self.monitor in record:  # it is not measured after each epoch
            self.scheduler.step(record[self.monitor])  # type: ignore[arg-type]


def make_schedule(
    factory: SchedulerFactory, optimizer: Optimizer, *, every: Every | None, length: Length, watched: Watched | None
) -> Schedule:
    """What the factory makes, and when it is stepped, as far as that can work for a run of this length."""
    told = _wants_total(factory)
    if told:
        every = every or "step"
        total = length.times(every)
        if total is None:
            raise FordeError(
                "scheduler wants the number of steps, which nobody knows for a loader without a length; give "
                "scheduler_every='epoch', or a function of the optimizer alone."
            )
        scheduler = factory(optimizer, total)
    else:
        scheduler = factory(optimizer)
    _refuse_other(scheduler, optimizer)
    monitor = None
    if isinstance(scheduler, ReduceLROnPlateau):
        monitor = _monitored(scheduler, every, watched)
    if isinstance(scheduler, OneCycleLR):
        every = _period_of_one_cycle(scheduler, every, length)
    if every == "step":
        times = length.times("step")
        many = "" if times is None else f" ({times} of them)"
        log.info("scheduler: %s is stepped after each step%s", type(scheduler).__name__, many)
    return Schedule(scheduler, every or "epoch", of_total=told, monitor=monitor)


def _parts(scheduler: Any) -> Iterator[Any]:
    """A scheduler, and those that it is put together of."""
    yield scheduler
    for part in schedulers_in(scheduler):
        yield from _parts(part)


def _wants_total(factory: SchedulerFactory) -> bool:
    """Whether it is a function of the optimizer and the number of steps, or else of the optimizer alone."""
    wanted = required_arguments(factory)
    if wanted is None or len(wanted) == 1:
        return False
    if len(wanted) == 2 and (not inspect.isclass(factory) or wanted[1] in TOTALS):
        return True
    names = ", ".join(wanted) or "nothing"
    raise FordeError(
        f"scheduler is a function of ({names}), but one of (optimizer) or (optimizer, total_steps) was expected; pass "
        f"{EXAMPLE}, or {EXAMPLE_OF_TOTAL}."
    )


def required_arguments(factory: Callable[..., Any]) -> list[str] | None:
    """Names of the arguments by position that a function cannot do without; None where Python does not tell.

    >>> required_arguments(lambda optimizer, total_steps, warm_up=10: None)
    ['optimizer', 'total_steps']
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return None
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in by_position if p.default is p.empty]
    if not required and (by_position or any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        return None
    return required


def _refuse_other(scheduler: Any, optimizer: Optimizer) -> None:
    """Stop where it is no scheduler of this optimizer."""
    if not hasattr(scheduler, "step") or not hasattr(scheduler, "state_dict"):
        raise FordeError(
            f"scheduler(optimizer) returned a {type(scheduler).__name__}, but a scheduler of "
            f"torch.optim.lr_scheduler was expected; pass {EXAMPLE}."
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise FordeError(
            f"the {type(scheduler).__name__} that scheduler(optimizer) returned is for another optimizer; build it "
            f"from its argument, as {EXAMPLE} does."
        )


def _monitored(scheduler: ReduceLROnPlateau, every: Every | None, watched: Watched | None) -> str:
    """The value that it waits for to improve."""
    if watched is None:
        raise FordeError(
            "ReduceLROnPlateau follows a value on validation data, and there is none; pass validation=0.2 to hold out "
            "a fifth of the training data, or data of its own, or choose another scheduler."
        )
    if every == "step":
        raise FordeError(
            f"ReduceLROnPlateau follows {watched.key}, which is there after each epoch only; leave scheduler_every out."
        )
    wanted, better = ("max", "more") if watched.higher_is_better else ("min", "less")
    if scheduler.mode != wanted:
        raise FordeError(
            f"ReduceLROnPlateau has mode='{scheduler.mode}', but of {watched.key} {better} is better; "
            f"give it mode='{wanted}'."
        )
    return watched.key


def _period_of_one_cycle(scheduler: OneCycleLR, every: Every | None, length: Length) -> Every:
    """As its `total_steps` says: stepped more often it would fail in the middle of a run, less often it never ends."""
    made_for, epochs, steps = scheduler.total_steps, length.epochs, length.times("step")
    if every is None and steps is not None and made_for == steps:
        return "step"
    if every is None and made_for in (epochs, epochs + 1):
        return "epoch"
    times = None if every is None else length.times(every)
    if every is not None and (times is None or made_for >= times):
        return every
    in_all = "" if steps is None else f" and {steps} steps"
    raise FordeError(
        f"OneCycleLR is made for {made_for} steps, but the run has {epochs} epochs{in_all}; make it for as many, as "
        f"{EXAMPLE_OF_TOTAL} does."
    )
