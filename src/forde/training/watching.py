"""What people see of a training: a bar where they watch, else a line for each epoch in the log; and the time left."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from forde.progress import EVERY, Bar, Pace, drawn_bar, duration
from forde.training.history import Record
from forde.training.loop import Loop
from forde.training.run_log import FOR_THE_FILE
from forde.training.validating import MEASURED, PREFIX

log = logging.getLogger(__name__)


class Watcher:
    """Tells how a training goes.

    Args:
        loop: what goes on.
        epochs: how many there will be, if nothing ends it before.
        bar: what is drawn; None where nobody watches.
        verbose: whether epochs are told in the log where there is no bar.
        filed: whether the log has a file of its own, which has each epoch in any case.
    """

    def __init__(self, loop: Loop, epochs: int, bar: Bar | None, *, verbose: bool, filed: bool) -> None:
        self._loop, self._epochs, self._bar = loop, epochs, bar
        self._told, self._filed = verbose and bar is None, filed
        self._steps = loop.feed.steps()
        self._note, self._drawn = "", 0.0
        self._pace = Pace(epochs)

    @property
    def sees_steps(self) -> bool:
        """Whether `step` has anything to do."""
        return self._bar is not None

    def start(self) -> None:
        """The loop stands where this process begins."""
        self._pace = Pace(self._epochs, self._loop.epoch)
        if self._bar is not None and self._loop.records:
            self._bar.update(self._loop.epoch, "resumed", None)

    def step(self) -> None:
        """After a step."""
        steps, now = self._steps, time.monotonic()
        if self._bar is None or now - self._drawn < EVERY or steps is None or self._loop.step >= steps:
            return
        self._drawn = now
        done = self._loop.epoch + self._loop.step / steps
        self._bar.update(done, self._note, self._pace.left(done))

    def epoch(self, record: Record) -> None:
        """After an epoch."""
        done = int(record["epoch"]) + 1
        left, found = self._pace.left(done), in_words(record, self._monitored)
        self._note = found
        if self._bar is not None:
            self._bar.update(done, found, left)
        if self._told or self._filed:
            best = self._loop.validator is not None and self._loop.validator.best_epoch == done - 1
            log.info(
                "epoch %d (%d of %d): %s%s  in %.3g s%s", done - 1, done, self._epochs, found,
                "  (best so far)" if best else "", record["seconds"],
                f", {duration(left)} left" if left is not None and done < self._epochs else "",
                extra={FOR_THE_FILE: not self._told},
            )  # fmt: skip

    @property
    def _monitored(self) -> str | None:
        return None if self._loop.validator is None else self._loop.validator.key


def in_words(record: Record, monitored: str | None = None) -> str:
    """The loss, and what was measured on the validation data, in a line.

    Args:
        monitored: of the validation data what decides, which comes first.

    >>> in_words({"loss": 0.51234, "repulsion": -0.002, "validation_nll": 0.44, "validation_ece": 0.031})
    'loss 0.5123  repulsion -0.002  validation nll 0.44  ece 0.031'
    """
    told = [f"loss {record['loss']:.4g}", f"repulsion {record['repulsion']:+.2g}"]
    usual = [PREFIX + name for name in MEASURED if name != "brier"]
    keys = dict.fromkeys([*([monitored] if monitored else []), *usual])
    measured = [f"{key.removeprefix(PREFIX)} {record[key]:.4g}" for key in keys if key in record]
    return "  ".join([*told, *(["validation " + measured[0], *measured[1:]] if measured else [])])


@contextmanager
def watched(loop: Loop, epochs: int, *, verbose: bool, filed: bool) -> Iterator[Watcher]:
    """Whoever tells how the training goes, while it goes."""
    with drawn_bar(epochs, loop.engine.method.name, show=verbose) as bar:
        yield Watcher(loop, epochs, bar, verbose=verbose, filed=filed)
