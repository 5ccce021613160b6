"""Everything from which a training loop goes on as if nothing had happened: into a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.random_state import random_tensors, set_random_tensors, set_source_state
from forde.torch_private import mark_as_stepped
from forde.training.checkpoints import Checkpoint, with_prefix
from forde.training.loop import Loop, Tally
from forde.training.numerics import refuse_non_finite_weights
from forde.training.optimizer_state import (
    load_optimizer_settings,
    load_optimizer_tensors,
    optimizer_numbers,
    optimizer_settings,
    optimizer_tensors,
)
from forde.training.plain import like, to_plain
from forde.training.writers import finite_or_null, from_json

COUNTS = ("epoch", "step", "steps", "skipped", "roll_backs", "patience")
"""Where a loop stands, in a checkpoint."""
UNUSABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError)
"""What taking up a checkpoint may raise whose checksum is right but whose content is another's."""


def snapshot(loop: Loop) -> Checkpoint:
    """Everything from which the loop could go on as if nothing had happened."""
    loop.engine.settle()
    loop.engine.collect()
    refuse_non_finite_weights(loop.ensemble, epoch=loop.epoch)
    optimizer = loop.engine.mesh.united(optimizer_tensors(loop.engine, loop.optimizer))
    now = random_tensors(loop.ensemble.device)
    tensors = {
        **{f"ensemble.{name}": tensor for name, tensor in loop.ensemble.member_tensors().items()},
        **{f"optimizer.{name}": value for name, value in optimizer.items()},
        **{f"now.{name}": state for name, state in now.items()},
        **{f"beginning.{name}": state for name, state in loop.beginning.items()},
        **{f"tally.{name}": torch.stack(values) for name, values in vars(loop.tally).items() if values},
        **{f"plan.{name}": tensor for name, tensor in loop.plan.tensors().items()},
        **{f"average.{name}": tensor for name, tensor in (loop.average.tensors() if loop.average else {}).items()},
        **{f"best.{name}": tensor for name, tensor in (loop.validator.tensors() if loop.validator else {}).items()},
    }
    state = {
        **{name: getattr(loop, name) for name in (*COUNTS, "seconds", "lr")},
        "stopped": loop.stopped,
        "validation": None if loop.validator is None else loop.validator.state(),
        "records": [finite_or_null(record) for record in loop.records],
        "optimizer": optimizer_settings(loop.optimizer),
        "optimizer_numbers": optimizer_numbers(loop.optimizer),
        "scheduler": None if loop.schedule is None else to_plain(loop.schedule.scheduler.state_dict()),
        # A callback may have changed these, and will not be called again for epochs that are done.
        "frozen": [name for name, parameter in _parameters(loop.ensemble) if not parameter.requires_grad],
        "evaluating": [name for name, layer in loop.ensemble.members.named_modules() if not layer.training],
    }
    return Checkpoint(tensors, state)


def restore(loop: Loop, checkpoint: Checkpoint) -> None:
    """Stand where a snapshot was taken, on any engine; a FordeError says what does not fit."""
    try:
        _restore(loop, checkpoint)
    except FordeError:
        raise
    except UNUSABLE as error:
        raise FordeError(f"its content does not fit this run ({type(error).__name__}: {error}).") from None


def _restore(loop: Loop, checkpoint: Checkpoint) -> None:
    tensors, state = checkpoint.tensors, checkpoint.state
    _load_ensemble(loop.ensemble, with_prefix(tensors, "ensemble."))
    load_optimizer_settings(loop.optimizer, state["optimizer"])
    load_optimizer_tensors(loop.engine, loop.optimizer, with_prefix(tensors, "optimizer."), state["optimizer_numbers"])
    if loop.schedule is not None:
        scheduler = loop.schedule.scheduler
        scheduler.load_state_dict(like(scheduler.state_dict(), state["scheduler"]))
    # torch warns of a scheduler that is stepped before its optimizer, which knows nothing of an earlier process.
    mark_as_stepped(loop.optimizer)
    for name in COUNTS:
        setattr(loop, name, int(state[name]))
    loop.seconds = float(state["seconds"])
    loop.lr = float(state.get("lr", loop.optimizer.param_groups[0]["lr"]))
    if "frozen" in state and "evaluating" in state:
        _restore_modes(loop.ensemble, set(state["frozen"]), set(state["evaluating"]))
    loop.records[:] = [from_json(record) for record in state["records"]]
    device = loop.ensemble.device
    loop.tally = Tally()
    for name, values in with_prefix(tensors, "tally.").items():
        getattr(loop.tally, name).extend(values.to(device))
    loop.plan.load(with_prefix(tensors, "plan."))
    loop.stopped = state.get("stopped")
    if loop.average is not None:
        loop.average.load(with_prefix(tensors, "average."))
    if loop.validator is not None:
        loop.validator.load(with_prefix(tensors, "best."), state["validation"])
    loop.beginning = with_prefix(tensors, "beginning.")
    for i, order in enumerate(loop.generators()):
        set_source_state(order, loop.beginning[f"order.{i}"])
    set_random_tensors(with_prefix(tensors, "now."), device)


def _restore_modes(ensemble: Ensemble, frozen: set[str], evaluating: set[str]) -> None:
    """Freeze what was frozen, and put layers into the mode that they were in."""
    for name, parameter in _parameters(ensemble):
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)
    for name, layer in ensemble.members.named_modules():
        layer.training = name not in evaluating


def _parameters(ensemble: Ensemble) -> Iterator[tuple[str, Tensor]]:
    return ensemble.members.named_parameters("members")


def _load_ensemble(ensemble: Ensemble, stored: dict[str, Tensor]) -> None:
    """In place, so that an engine that holds the members stacked sees it too."""
    own = ensemble.member_tensors()
    for name in sorted(set(own) | set(stored)):
        if name not in own or name not in stored or own[name].shape != stored[name].shape:
            shapes = [str(list(d[name].shape)) if name in d else "missing" for d in (stored, own)]
            raise FordeError(f"it holds another architecture: '{name}' is {shapes[0]} there and {shapes[1]} here.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])
