"""What `fit` can be asked for, in groups of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from forde.distributed.mesh import Shape
from forde.errors import FordeError, number_from_0, unknown_name, whole_number
from forde.step.records import Memory
from forde.training.image_feed import Augmentation
from forde.training.numerics import NonFinite
from forde.training.writers import Writer


@dataclass(frozen=True)
class Batching:
    """How the data become batches, beside their size.

    >>> Batching(drop_last=False)
    Batching(drop_last=False, augmentation=None, independent=False, repel_on=None)
    """

    drop_last: bool = True
    """Leave out the last, smaller batch of an epoch (other samples each time)."""
    augmentation: Augmentation | None = None
    """Random crops and flips of `forde.data.Images`, made on the device."""
    independent: bool = False
    """An order of its own for each member, as classical deep ensembles have; only without repulsion."""
    repel_on: Any = field(default=None, compare=False)
    """Other data for members to be compared at, instead of each batch: inputs as a tensor, array or dict, a Dataset or
    a DataLoader; unlabelled, augmented or foreign. Labels in it are not read: where the method needs some, they are
    those of the ensemble's mean prediction. Each step takes a batch of it, as the DataLoader has it, or of `batch_size`
    (times the method's `repulsion_fraction`)."""


@dataclass(frozen=True)
class Optimization:
    """How gradients become steps, beside the optimizer and the scheduler.

    >>> Optimization(clip_norm=1.0).scheduler_every is None
    True
    """

    clip_norm: float | None = None
    """Longest gradient of a member: a longer one, with priors and repulsion in it, is made that short before the
    optimizer sees it. Each member's is measured by itself, on all engines. None for no limit."""
    accumulate: int = 1
    """In how many parts each batch is computed, to need the memory of a part only. The gradient is that of the whole
    batch, repulsion included, on every engine; where members repel, all parts but one make their forward pass twice.
    BatchNorm normalises each part by itself, which one line says, and dropout draws other numbers.
    Class weights and ignored labels count as in the whole batch (not compiled). What else couples samples in losses and
    representations is an error."""
    ema: float | None = None
    """Decay d of an average over the steps, a ← d a + (1 − d) θ, such as 0.999: validation and the trained ensemble are
    of the averages a, weights and running statistics (BatchNorm); training goes on from θ. None for no average."""
    scheduler_every: Literal["epoch", "step"] | None = None
    """When the scheduler is stepped. If left out: after each step where it is made by a function of two arguments,
    `(optimizer, total_steps)`, or is a `OneCycleLR` for as many steps as the run has; else after each epoch."""

    def __post_init__(self) -> None:
        if self.clip_norm is not None and number_from_0("clip_norm", self.clip_norm) == 0:
            raise FordeError("clip_norm is 0, so nothing would move; give a positive number, or None for no limit.")
        whole_number("accumulate", self.accumulate, at_least=1)
        if self.ema is not None and not 0 < number_from_0("ema", self.ema) < 1:
            raise FordeError(
                f"ema is {self.ema!r}, but a decay between 0 and 1 was expected, such as 0.999; leave it out for no "
                "average."
            )
        if self.scheduler_every not in (None, *(choices := ("epoch", "step"))):
            raise unknown_name("scheduler_every", self.scheduler_every, choices)


HIGHER_IS_BETTER = {"accuracy": True, **dict.fromkeys(("nll", "brier", "ece", "rmse", "crps", "loss"), False)}
"""Of the metrics of an ensemble, by name."""


@dataclass(frozen=True, eq=False)
class Validation:
    """Data that members are not trained on, how training is judged by it, and what follows from that.

    >>> Validation(0.2, patience=5).monitor
    'nll'
    """

    data: Any
    """Of any kind that `fit` takes, or the share of the training data that is held out for it: drawn by the seed, and
    of each class alike where there are labels in memory."""
    monitor: str = "nll"
    """The metric of the ensemble that decides: `"nll"`, `"accuracy"`, `"brier"` or `"ece"`; `"nll"`, `"rmse"` or
    `"crps"` in regression; `"loss"` (mean of the members' losses) under a loss of one's own."""
    patience: int | None = None
    """Stop once so many epochs in a row were no better than the best one; None for never."""
    restore_best: bool = True
    """Let the ensemble end as it was after its best epoch, and not after the last one."""
    every: int = 1
    """Measure after every so many epochs, and after the last one."""
    measures: Callable[[Tensor, Tensor], Mapping[str, float]] | None = None
    """What is measured in place of forde's metrics, from outputs `[M, N, ...]` and targets `[N, ...]`: numbers by name,
    of which `monitor` names one."""
    mode: Literal["min", "max"] | None = None
    """Whether less or more is better of what `monitor` names; of your own `measures` it must be said."""

    def __post_init__(self) -> None:
        whole_number("every", self.every, at_least=1)
        if self.patience is not None:
            whole_number("patience", self.patience, at_least=1)
        if self.mode not in (None, *(choices := ("min", "max"))):
            raise unknown_name("mode", self.mode, choices)
        known = HIGHER_IS_BETTER.get(self.monitor)
        if self.mode is None and known is None and self.measures is not None:
            raise FordeError(
                f"monitor='{self.monitor}' is a measure of your own, of which forde does not know which way is better; "
                "say mode='max' if more is better, or mode='min'."
            )
        if self.mode is not None and self.measures is None and known not in (None, self.mode == "max"):
            raise FordeError(
                f"mode is '{self.mode}', but of {self.monitor} {'more' if known else 'less'} is better; leave mode out."
            )
        if self.data is None:
            raise FordeError("Validation needs data, or the share of the training data to hold out, such as 0.2.")
        if isinstance(self.data, (bool, int, float)) and not (self.data is not True and 0 < self.data < 1):
            raise FordeError(
                f"validation is {self.data!r}, but data, or a share of the training data between 0 and 1, was "
                "expected; pass validation=0.2 to hold out a fifth."
            )

    @property
    def higher_is_better(self) -> bool:
        """Of what `monitor` names."""
        return HIGHER_IS_BETTER.get(self.monitor, False) if self.mode is None else self.mode == "max"


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

    >>> Reporting(diagnostics_every=0, verbose=False).writers
    ()
    """

    verbose: bool = True
    """Show a bar on a terminal or in a notebook, and elsewhere log a line for each epoch (`logging`, level INFO), both
    with the metrics of the validation data and the time left. `log.txt` of a run has the lines in any case."""
    diagnostics_every: int = 1
    """Measure disagreement and gradient cosine every so many epochs; 0 for never."""
    writers: Sequence[Writer] = ()
    """Where else records go: `forde.training.writers.TensorBoard`, `WeightsAndBiases`, or your own."""
    callbacks: Sequence[Any] = ()
    """Objects with any of the methods `on_start`, `on_step`, `on_epoch` and `on_end`, which are given a
    `forde.training.Training`: the ensemble, the record, `stop()` and more."""

    def __post_init__(self) -> None:
        if self.verbose not in (True, False):
            raise FordeError(f"verbose is {self.verbose!r}, but True or False was expected.")
        whole_number("diagnostics_every", self.diagnostics_every, at_least=0)


@dataclass(frozen=True)
class Checkpointing:
    """What the folder given as `run` keeps: when checkpoints are written, how many stay, what else is noted.

    >>> Checkpointing(every=5, minutes=None)
    Checkpointing(every=5, minutes=None, keep=2, about=None, note=None)
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
    note: Mapping[str, Any] | None = None
    """What is worth knowing of the run without deciding its result, such as where its data lie: kept in the run's
    `config.json` under `how`, and may be otherwise when it is resumed."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise FordeError(f"checkpoint_every is {self.every}, but a number of epochs of at least 1 was expected.")
        if self.minutes is not None and not self.minutes >= 0:
            raise FordeError(f"checkpoint_minutes is {self.minutes}, but 0 or a positive number was expected.")
        if self.keep < 1:
            raise FordeError(f"keep is {self.keep}, but at least 1 checkpoint must be kept.")
