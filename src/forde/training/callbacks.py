"""What may be done by others while a training goes on: objects that are called at its start, steps, epochs and end.

    class StopAt:
        def on_epoch(self, training):
            if training.record["loss"] < 0.1:
                training.stop("the loss is small enough")

    fit(..., callbacks=[StopAt()])

They are called when the step or epoch is noted and before a checkpoint is written, so what they change is in the
checkpoint, and a resumed run goes on with it. Where one raises, a checkpoint is written first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from forde.distributed.mesh import Mesh
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.training.history import Record
from forde.training.loop import Loop
from forde.turns import paused

log = logging.getLogger(__name__)

EVENTS = ("on_start", "on_step", "on_epoch", "on_end")
ADVICE = "give an object with a method on_start, on_step, on_epoch or on_end, each of one argument"


class Training:
    """A training as callbacks see it.

    Args:
        loop: what goes on.
        epochs: how many there will be, if nothing ends it before.
    """

    def __init__(self, loop: Loop, epochs: int) -> None:
        self._loop, self.epochs = loop, epochs
        self.ensemble: Ensemble = loop.ensemble
        """The members as they are trained; at the end as `fit` leaves them. Of a method that trains one network (swag,
        node-bnn) an ensemble of that one, until the end. On several processes, members of others are up to date after
        each epoch only."""
        self.epoch = loop.epoch
        """The epoch that goes on, counted from 0; in `on_epoch` the one that has just ended."""

    @property
    def optimizer(self) -> Optimizer:
        """What moves the members; engines may hold their parameters stacked, `[M, ...]`."""
        return self._loop.optimizer

    @property
    def step(self) -> int:
        """Steps that were made since the start of the run."""
        return self._loop.steps

    @property
    def losses(self) -> Tensor | None:
        """Mean loss of each member on the batch of the last step, before it moved: `[M]`; None if that was skipped."""
        return self._loop.losses

    @property
    def records(self) -> list[Record]:
        """One for each epoch that has ended, also of those before a run was resumed."""
        return self._loop.records

    @property
    def record(self) -> Record | None:
        """Of the last epoch that has ended."""
        return self.records[-1] if self.records else None

    def stop(self, reason: str = "a callback stopped it") -> None:
        """End the training after this step or epoch, as after its last one; `history.stopped` is the reason."""
        self._loop.stopped = str(reason)


def checked_callbacks(given: Any) -> tuple[Any, ...]:
    """What was given as `callbacks`, if each of them has a method that will be called."""
    if not isinstance(given, (list, tuple)):
        raise FordeError(f"callbacks is a {type(given).__name__}, but a list of objects was expected; {ADVICE}.")
    for each in given:
        name = type(each).__name__
        if isinstance(each, type):
            raise FordeError(
                f"callbacks holds the class {each.__name__}, but an object was expected; write {each.__name__}()."
            )
        if any(callable(getattr(each, event, None)) for event in EVENTS):
            others = [n for n in dir(each) if n.startswith("on_") and n not in EVENTS and callable(getattr(each, n))]
            if others:
                log.warning("%s has %s, which is never called; known are %s", name, others[0], ", ".join(EVENTS))
            continue
        if callable(each):
            raise FordeError(f"callbacks holds a function ({name}); pass it as callback=, or {ADVICE}.")
        raise FordeError(f"callbacks holds a {name}, which has nothing to be called; {ADVICE}.")
    return tuple(given)


class Listeners:
    """All who are told of a training: callbacks, and functions of each epoch's record.

    Args:
        callbacks: objects with some of the methods.
        of_records: writers, and `callback` of `fit`.
        mesh: its processes stop together, and each calls its own.
    """

    def __init__(
        self, callbacks: Sequence[Any], of_records: Sequence[Callable[[Record], None]], training: Training, mesh: Mesh
    ) -> None:
        self.training, self._mesh, self._of_records = training, mesh, of_records
        self._hooks = {event: [h for c in callbacks if callable(h := getattr(c, event, None))] for event in EVENTS}
        own = [len(self._hooks[event]) for event in EVENTS]
        own[EVENTS.index("on_epoch")] += len(of_records)
        self._anywhere = dict(zip(EVENTS, mesh.all_reduce_max(own), strict=True))
        self._left_out = _frozen_and_left_out(training._loop)

    @property
    def hear_steps(self) -> bool:
        """Whether anybody wants to be called after each step."""
        return bool(self._anywhere["on_step"])

    def start(self, save: Callable[[], None]) -> None:
        """Before the first step of this process.

        Args:
            save: writes a checkpoint, which is done before an error of a callback goes on.
        """
        self._tell("on_start", save, self._hooks["on_start"])

    def step(self, save: Callable[[], None]) -> None:
        """After a step."""
        self.training.epoch = self.training._loop.epoch
        self._tell("on_step", save, self._hooks["on_step"])

    def epoch(self, record: Record, save: Callable[[], None]) -> None:
        """After an epoch."""
        self.training.epoch = int(record["epoch"])
        told = [lambda training, one=one: one(record) for one in self._of_records]
        self._tell("on_epoch", save, [*told, *self._hooks["on_epoch"]])

    def end(self, ensemble: Ensemble) -> None:
        """When everything is done and saved."""
        self.training.ensemble = ensemble
        self._tell("on_end", lambda: None, self._hooks["on_end"])

    def _tell(self, event: str, save: Callable[[], None], hooks: Sequence[Callable[[Any], None]]) -> None:
        if not self._anywhere[event]:
            return
        loop = self.training._loop
        with self._saving_if_it_fails(save):
            with paused():  # what the user does there may wait for other threads
                for hook in hooks:
                    hook(self.training)
            if event in ("on_start", "on_epoch"):
                self._refuse_unheld(loop)
        if self._mesh.anywhere(loop.stopped is not None) and loop.stopped is None:
            loop.stopped = "a callback of another process stopped it"

    @contextmanager
    def _saving_if_it_fails(self, save: Callable[[], None]) -> Iterator[None]:
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:  # also where the user interrupts a callback
            error = raised
        if not self._mesh.anywhere(error is not None):
            return
        save()
        raise error or FordeError("a callback failed in another process, whose message says why.")

    def _refuse_unheld(self, loop: Loop) -> None:
        """Stop where something was unfrozen that the optimizer does not hold, and so would not move."""
        for index, member in enumerate(loop.ensemble.members):
            for name, parameter in member.named_parameters():
                if name in self._left_out and parameter.requires_grad:
                    raise FordeError(
                        f"a callback unfroze '{name}' of member {index}, but the optimizer does not hold it, so it "
                        "would not be trained; build the optimizer from all parameters that it is given, frozen ones "
                        "too."
                    )
        backbone = loop.ensemble.backbone
        if backbone is not None and any(p.requires_grad for p in backbone.parameters()):
            raise FordeError(
                "a callback unfroze the backbone, which all members share and nothing trains; let make_network return "
                "body and head together to train both."
            )


def _frozen_and_left_out(loop: Loop) -> set[str]:
    """Names of parameters that are frozen at the start and that the optimizer does not hold."""
    held = {id(tensor) for group in loop.optimizer.param_groups for tensor in group["params"]}
    leaves = [pair for unit in loop.engine.runner.leaves for pair in unit.items()]
    return {name for name, leaf in leaves if id(leaf) not in held and not leaf.requires_grad}
