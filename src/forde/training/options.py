"""What `fit` can be asked for: four groups of options, and all settings of one training together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forde.distributed.mesh import Shape
from forde.engine import EngineName
from forde.errors import FordeError, unknown_name, whole_number
from forde.step.records import Memory, Precision
from forde.training.history import Record
from forde.training.image_feed import Augmentation
from forde.training.numerics import NonFinite
from forde.training.writers import Writer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batching:
    """How the data become batches, beside their size.

    >>> Batching(drop_last=False)
    Batching(drop_last=False, augmentation=None, independent=False)
    """

    drop_last: bool = True
    """Leave out the last, smaller batch of an epoch (other samples each time)."""
    augmentation: Augmentation | None = None
    """Random crops and flips of `forde.data.Images`, made on the device."""
    independent: bool = False
    """An order of its own for each member, as classical deep ensembles have; only without repulsion."""


@dataclass(frozen=True)
class Execution:
    """How steps are carried out, beside device, precision and engine.

    >>> Execution(memory="low").mesh is None
    True
    """

    memory: Memory = "speed"
    """`"speed"` keeps every member's graph while members are compared; `"low"` keeps none and makes one member's
    forward pass after another again (a third more arithmetic), `"balanced"` does so for half of them."""
    mesh: Shape | Literal["auto"] | None = None
    """(shards of members, shards of the batch) where torchrun started as many processes and each calls `fit` with the
    same arguments; `"auto"` takes as many shards of members as divide M. All processes end with the whole ensemble;
    the first one writes `run` and feeds the writers, each calls its own `callback`."""
    non_finite: NonFinite = "stop"
    """What to do when a loss or gradient is NaN or infinite: `"stop"` before the weights are touched, `"skip"` the step
    (the record's `skipped` counts them), or `"roll_back"` to the last checkpoint and go on with half the learning
    rate, at most 10 times (needs `run`)."""

    def __post_init__(self) -> None:
        if self.non_finite not in (choices := ("stop", "skip", "roll_back")):
            raise unknown_name("non_finite", self.non_finite, choices)


@dataclass(frozen=True)
class Reporting:
    """What is measured and shown, and where records go.

    >>> Reporting(diagnostics_every=0, progress=False).writers
    ()
    """

    progress: bool = True
    """Show a bar on a terminal."""
    diagnostics_every: int = 1
    """Measure disagreement and gradient cosine every so many epochs; 0 for never."""
    writers: Sequence[Writer] = ()
    """Where else records go: `forde.training.writers.TensorBoard`, `WeightsAndBiases`, or your own."""

    def __post_init__(self) -> None:
        whole_number("diagnostics_every", self.diagnostics_every, at_least=0)


@dataclass(frozen=True)
class Checkpointing:
    """What the folder given as `run` keeps: when checkpoints are written, how many stay, what else is noted.

    >>> Checkpointing(every=5, minutes=None)
    Checkpointing(every=5, minutes=None, keep=2, about=None)
    """

    every: int | None = None
    """Write a checkpoint after every so many epochs; None for never by epochs."""
    minutes: float | None = 10.0
    """Write one after the step at which so many minutes have passed since the last; 0 for every step, None for
    never."""
    keep: int = 2
    """How many checkpoints stay."""
    about: Mapping[str, Any] | None = None
    """What else belongs to the run, such as how its data was prepared, as plain JSON values: kept in the run's
    `config.json`, and must be the same when it is resumed."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise FordeError(f"checkpoint_every is {self.every}, but a number of epochs of at least 1 was expected.")
        if self.minutes is not None and not self.minutes >= 0:
            raise FordeError(f"checkpoint_minutes is {self.minutes}, but 0 or a positive number was expected.")
        if self.keep < 1:
            raise FordeError(f"keep is {self.keep}, but at least 1 checkpoint must be kept.")


class Shorthands(TypedDict, total=False):
    """Options of the groups that `fit` takes by themselves too."""

    drop_last: bool
    augmentation: Augmentation | None
    independent_data: bool
    memory: Memory
    mesh: Shape | Literal["auto"] | None
    non_finite: NonFinite
    progress: bool
    diagnostics_every: int
    writers: Sequence[Writer]
    checkpoint_every: int | None
    checkpoint_minutes: float | None
    keep: int
    about: Mapping[str, Any] | None


RENAMED = {"independent_data": "independent", "checkpoint_every": "every", "checkpoint_minutes": "minutes"}
"""Shorthand → the option's name in its group, where these differ."""


class Groups(TypedDict):
    """The groups, each given or at its defaults."""

    batches: Batching
    execution: Execution
    reporting: Reporting
    checkpoint: Checkpointing


def grouped(
    shorthands: Mapping[str, Any],
    *,
    batches: Batching | None = None,
    execution: Execution | None = None,
    reporting: Reporting | None = None,
    checkpoint: Checkpointing | None = None,
) -> Groups:
    """The groups with shorthands taken in.

    >>> grouped({"keep": 3})["checkpoint"].keep
    3
    """
    given = {"batches": batches, "execution": execution, "reporting": reporting, "checkpoint": checkpoint}
    for shorthand in shorthands:
        if shorthand not in Shorthands.__annotations__:
            raise unknown_name("argument of fit", shorthand, [*Shorthands.__annotations__, *given, *FLAT])
    return Groups(
        batches=_group("batches", Batching, batches, shorthands),
        execution=_group("execution", Execution, execution, shorthands),
        reporting=_group("reporting", Reporting, reporting, shorthands),
        checkpoint=_group("checkpoint", Checkpointing, checkpoint, shorthands),
    )


def _group(argument: str, kind: type[Any], given: Any, shorthands: Mapping[str, Any]) -> Any:
    """One group; a shorthand beside it would leave open which of the two counts."""
    if given is not None and not isinstance(given, kind):
        raise FordeError(f"{argument} is {given!r}, but a forde.{kind.__name__} was expected.")
    options = {RENAMED.get(name, name): (name, value) for name, value in shorthands.items()}
    own = {option: pair for option, pair in options.items() if option in kind.__dataclass_fields__}
    if given is not None and own:
        option, (name, value) = next(iter(own.items()))
        raise FordeError(
            f"{argument}={kind.__name__}(...) and {name}={value!r} were both given; "
            f"put it in the group, as {kind.__name__}({option}={value!r})."
        )
    return replace(given or kind(), **{option: value for option, (_, value) in own.items()})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that one training was asked for, beside ensemble, method and data; checked."""

    epochs: int
    batch_size: int
    lr: float | None
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None
    scheduler: Callable[[Optimizer], LRScheduler] | None
    seed: int
    device: str | torch.device | None
    precision: Precision
    engine: EngineName
    callback: Callable[[Record], None] | None
    run: str | Path | None
    resume: bool
    batches: Batching
    execution: Execution
    reporting: Reporting
    checkpoint: Checkpointing

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, at_least=0)
        whole_number("epochs", self.epochs, at_least=1)
        whole_number("batch_size", self.batch_size, at_least=1)
        if self.run is None and (self.resume or self.execution.non_finite == "roll_back"):
            raise FordeError("resume and non_finite='roll_back' need checkpoints; give a folder for them as run=.")
        if self.run is None and self.checkpoint.about is not None:
            raise FordeError("about is kept in the folder of a run; give one as run=, or leave about out.")
        if self.run is None and self.checkpoint != Checkpointing():
            log.warning("checkpoints are written into the folder of a run; without run= there are none.")
        for what, given, names in (("engine", self.engine, EngineName), ("memory", self.execution.memory, Memory)):
            if given not in get_args(names):
                raise unknown_name(what, given, get_args(names))
        if self.precision not in ("float32", "bf16"):
            raise FordeError(f"precision is {self.precision!r}, but 'float32' or 'bf16' was expected.")

    @property
    def decisive(self) -> dict[str, Any]:
        """Those that decide the result, beside optimizer and scheduler: a run that is resumed must have the same."""
        return {
            "epochs": self.epochs, "batch_size": self.batch_size, "seed": self.seed, "precision": self.precision,
            "drop_last": self.batches.drop_last, "augmentation": self.batches.augmentation,
            "independent_data": self.batches.independent,
        }  # fmt: skip

    def how(self, device: torch.device, shape: Shape) -> dict[str, Any]:
        """Those that say how it is carried out, which may be others when a run is resumed."""
        checkpoint = self.checkpoint
        return {
            "device": str(device), "engine": self.engine, "memory": self.execution.memory, "mesh": shape,
            "diagnostics_every": self.reporting.diagnostics_every, "checkpoint_every": checkpoint.every,
            "checkpoint_minutes": checkpoint.minutes, "keep": checkpoint.keep, "non_finite": self.execution.non_finite,
        }  # fmt: skip


FLAT = tuple(name for name in Settings.__dataclass_fields__ if name not in Groups.__annotations__)
"""Arguments of `fit` that are in no group."""
