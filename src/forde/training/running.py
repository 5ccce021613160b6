"""A loop from where it stands to its end: epochs, checkpoints, callbacks, and what the ensemble ends as."""

from __future__ import annotations

import logging
from contextlib import nullcontext

from forde.errors import NonFiniteError
from forde.training.callbacks import Listeners
from forde.training.history import History
from forde.training.loop import Loop
from forde.training.run_folder import BEST, LAST, RunFolder
from forde.training.signals import StopRequest, stop_requests
from forde.training.watching import watched

log = logging.getLogger(__name__)


def train(loop: Loop, epochs: int, folder: RunFolder | None, listeners: Listeners, *, verbose: bool) -> None:
    """All epochs that are still to be done, with everybody told of each.

    Args:
        folder: where checkpoints are written, and returned to.
        verbose: whether people are told how it goes.
    """

    def save() -> None:
        if folder is not None:
            folder.save(loop)

    def after_step() -> None:
        watcher.step()
        if listeners.hear_steps:
            listeners.step(save)
        if folder is not None:
            folder.after_step(loop, request)

    with (
        watched(loop, epochs, verbose=verbose, filed=folder is not None) as watcher,
        nullcontext(StopRequest()) if folder is None else stop_requests() as request,
    ):
        if folder is not None:
            folder.take_up(loop)
        begun = loop.epoch
        quiet = folder is None and not listeners.hear_steps and not watcher.sees_steps
        watcher.start()
        listeners.start(save)
        while (loop.epoch < epochs and loop.stopped is None) or loop.step:
            try:
                record = loop.run_epoch(last=loop.epoch == epochs - 1, after_step=None if quiet else after_step)
            except NonFiniteError as error:
                if folder is None or loop.non_finite != "roll_back":
                    raise
                folder.roll_back(loop, error)
                continue
            watcher.epoch(record)
            if folder is not None:
                folder.note(record)
            listeners.epoch(record, save)
            if folder is not None:
                folder.after_epoch(loop, request)
        if folder is not None and loop.epoch > begun and folder.keeps_last(loop):
            folder.save(loop)


def conclude(loop: Loop, history: History, folder: RunFolder | None) -> None:
    """Say how training ended, and let the ensemble be what it shall end as."""
    history.records, history.stopped = loop.records, loop.stopped
    if loop.stopped is not None:
        log.info("training ended after epoch %d of its own accord: %s", loop.epoch - 1, loop.stopped)
    if loop.average is not None:
        loop.average.put()
    if loop.validator is None:
        return
    validator, restores = loop.validator, loop.validator.options.restore_best
    history.best_epoch = validator.best_epoch
    if folder is not None and validator.best_epoch is not None:
        with nullcontext() if restores else validator.as_it_was_best():
            folder.keep(loop.ensemble, LAST if restores else BEST)
    if restores and validator.best_epoch is not None:
        validator.restore_best()
        log.info("the ensemble is that of its best epoch, %d", validator.best_epoch)
    elif restores:
        log.warning("%s was never a number, so the ensemble is that of its last epoch", validator.key)
