"""All settings of one training together: groups of options, their shorthands, and what is in no group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import torch

from forde.distributed.mesh import Shape
from forde.engine import EngineName
from forde.errors import FordeError, unknown_name, whole_number
from forde.step.records import Memory, Precision
from forde.training.callbacks import checked_callbacks
from forde.training.history import Record
from forde.training.image_feed import Augmentation
from forde.training.numerics import NonFinite
from forde.training.optimizer import OptimizerFactory
from forde.training.options import Batching, Checkpointing, Execution, Optimization, Reporting, Validation
from forde.training.plain import described
from forde.training.schedule import SchedulerFactory
from forde.training.writers import Writer

log = logging.getLogger(__name__)


class Shorthands(TypedDict, total=False):
    """Options of the groups that `fit` takes by themselves too."""

    clip_norm: float | None
    accumulate: int
    ema: float | None
    scheduler_every: Literal["epoch", "step"] | None
    drop_last: bool
    augmentation: Augmentation | None
    independent_data: bool
    repel_on: Any
    memory: Memory
    mesh: Shape | Literal["auto"] | None
    non_finite: NonFinite
    verbose: bool
    diagnostics_every: int
    writers: Sequence[Writer]
    callbacks: Sequence[Any]
    checkpoint_every: int | None
    checkpoint_minutes: float | None
    keep: int
    about: Mapping[str, Any] | None
    note: Mapping[str, Any] | None
    monitor: str
    patience: int | None
    restore_best: bool


BATCH_SIZE = 128
"""Samples of a step where nothing else is asked for."""
RENAMED = {"independent_data": "independent", "checkpoint_every": "every", "checkpoint_minutes": "minutes"}
"""Shorthand → the option's name in its group, where these differ."""


class Groups(TypedDict):
    """The groups, each given or at its defaults; there is no validation without data for it."""

    optimization: Optimization
    validation: Validation | None
    batches: Batching
    execution: Execution
    reporting: Reporting
    checkpoint: Checkpointing


def grouped(
    shorthands: Mapping[str, Any],
    *,
    optimization: Optimization | None = None,
    validation: Any = None,
    batches: Batching | None = None,
    execution: Execution | None = None,
    reporting: Reporting | None = None,
    checkpoint: Checkpointing | None = None,
) -> Groups:
    """The groups with shorthands taken in.

    >>> grouped({"keep": 3})["checkpoint"].keep
    3
    """
    if "progress" in shorthands:
        log.warning("progress=%r is now called verbose; write that.", shorthands["progress"])
        shorthands = {("verbose" if name == "progress" else name): value for name, value in shorthands.items()}
    given = ("optimization", "validation", "batches", "execution", "reporting", "checkpoint")
    for shorthand in shorthands:
        if shorthand not in Shorthands.__annotations__:
            if shorthand in ELSEWHERE:
                raise FordeError(f"fit has no argument '{shorthand}'; here it is {ELSEWHERE[shorthand]}.")
            raise unknown_name("argument of fit", shorthand, [*Shorthands.__annotations__, *given, *FLAT])
    return Groups(
        optimization=_group("optimization", Optimization, optimization, shorthands),
        validation=_validation(validation, shorthands),
        batches=_group("batches", Batching, batches, shorthands),
        execution=_group("execution", Execution, execution, shorthands),
        reporting=_group("reporting", Reporting, reporting, shorthands),
        checkpoint=_group("checkpoint", Checkpointing, checkpoint, shorthands),
    )


def _validation(given: Any, shorthands: Mapping[str, Any]) -> Validation | None:
    """The group of data that was given by itself, with its shorthands."""
    if isinstance(given, Validation):
        group: Validation = _group("validation", Validation, given, shorthands)
        return group
    own = {name: shorthands[name] for name in ("monitor", "patience", "restore_best") if name in shorthands}
    if given is not None:
        return Validation(given, **own)
    for name, value in own.items():
        raise FordeError(
            f"{name}={value!r} is about validation data, and there is none; pass validation=0.2 to hold out a fifth of "
            f"the training data, or data of its own, or leave {name} out."
        )
    return None


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
    optimizer: OptimizerFactory | None
    scheduler: SchedulerFactory | None
    seed: int
    device: str | torch.device | None
    precision: Precision
    engine: EngineName
    callback: Callable[[Record], None] | None
    run: str | Path | None
    resume: bool
    optimization: Optimization
    validation: Validation | None
    batches: Batching
    execution: Execution
    reporting: Reporting
    checkpoint: Checkpointing

    def __post_init__(self) -> None:
        checked_callbacks(self.reporting.callbacks)
        if self.callback is not None and not callable(self.callback):
            raise FordeError(
                f"callback is a {type(self.callback).__name__}, but a function of each epoch's record was expected; "
                "give objects with methods as callbacks=[...]."
            )
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
            **({} if self.batches.repel_on is None else {"repel_on": "other data"}),
            "validation": self._how_validated, **self._how_optimized,
        }  # fmt: skip

    @property
    def _how_optimized(self) -> dict[str, Any]:
        """Options that are used; others were not there in older runs. The schedule itself says when it is stepped."""
        defaults, given = vars(Optimization()), vars(self.optimization)
        used = {name for name, value in given.items() if value != defaults[name]} - {"scheduler_every"}
        return {name: given[name] for name in used}

    @property
    def _how_validated(self) -> dict[str, Any] | None:
        """Without the data; a share of the training data is a number that counts."""
        if self.validation is None:
            return None
        given = self.validation
        share = given.data if isinstance(given.data, float) else None
        measures = {} if given.measures is None else {"measures": described(given.measures)}
        return {
            "share": share, "monitor": given.monitor, "patience": given.patience, "restore_best": given.restore_best,
            **({} if given.every == 1 else {"every": given.every}), **measures,
            **({} if given.mode is None else {"mode": given.mode}),
        }  # fmt: skip

    def how(self, device: torch.device, shape: Shape) -> dict[str, Any]:
        """Those that say how it is carried out, which may be others when a run is resumed."""
        checkpoint = self.checkpoint
        return {
            "device": str(device), "engine": self.engine, "memory": self.execution.memory, "mesh": shape,
            "diagnostics_every": self.reporting.diagnostics_every, "checkpoint_every": checkpoint.every,
            "checkpoint_minutes": checkpoint.minutes, "keep": checkpoint.keep, "non_finite": self.execution.non_finite,
            **({} if checkpoint.note is None else {"note": checkpoint.note}),
        }  # fmt: skip


ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "learning_rate_init"), "lr"),
    **dict.fromkeys(("max_epochs", "num_epochs", "n_epochs", "num_train_epochs", "max_iter"), "epochs"),
    **dict.fromkeys(("val_loader", "val_data", "validation_data", "eval_dataset", "eval_set"), "validation"),
    **dict.fromkeys(("loss", "loss_fn", "criterion"), "the ensemble's: Ensemble(..., likelihood=...)"),
    "weight_decay": "the method's: forde.method(name, weight_decay=...)",
    **dict.fromkeys(("accelerator", "gpus"), "device"),
    **dict.fromkeys(("enable_progress_bar", "disable_tqdm", "progress_bar"), "verbose"),
    **dict.fromkeys(("max_grad_norm", "gradient_clip_val"), "clip_norm"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "accumulate"),
    **dict.fromkeys(("train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("early_stopping", "early_stopping_patience", "n_iter_no_change"), "patience, beside validation"),
    **dict.fromkeys(("monitor_metric", "metric_for_best_model"), "monitor, beside validation"),
    **dict.fromkeys(("load_best_model_at_end", "restore_best_weights"), "restore_best, beside validation"),
    **dict.fromkeys(("lr_scheduler", "lr_scheduler_type", "warmup_steps", "warmup_ratio"), "scheduler"),
    **dict.fromkeys(("ckpt_path", "resume_from_checkpoint"), "resume=True, beside a folder as run"),
    **dict.fromkeys(("num_workers", "shuffle", "collate_fn", "sampler"), "the DataLoader's, which is given as data"),
}
"""What other libraries call it, too far from our word to be found as a misspelling."""
FLAT = tuple(name for name in Settings.__dataclass_fields__ if name not in Groups.__annotations__)
"""Arguments of `fit` that are in no group."""
