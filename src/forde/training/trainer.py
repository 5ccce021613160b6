"""`fit`: train an ensemble with a method on data."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forde.arguments import Input
from forde.distributed.mesh import ALONE, Mesh, checked_shape, joined
from forde.engine import EngineName, make_engine
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods import Method
from forde.methods import method as named_method
from forde.methods.plan import Plan
from forde.random_state import seeded
from forde.step import Step
from forde.step.checks import explaining_memory
from forde.step.records import Precision
from forde.step.sharded import refuse_uneven_batches, share_members, share_random_numbers
from forde.training.averaging import WeightAverage, say_if_too_slow
from forde.training.callbacks import Listeners, Training
from forde.training.clipping import clip_before_each_step
from forde.training.configuration import (
    decisive_settings,
    environment,
    known_by,
    refuse_different_processes,
)
from forde.training.feed import Feed
from forde.training.history import History, Record
from forde.training.loop import Loop
from forde.training.optimizer import OptimizerFactory, make_optimizer, refuse_nothing_to_train
from forde.training.options import Batching, Checkpointing, Execution, Optimization, Reporting
from forde.training.outcome import Outcome
from forde.training.plain import described
from forde.training.preparing import (
    Feeds,
    available_device,
    feeds_of,
    fitted_to,
    say_what_is_not_trained,
    training_data,
)
from forde.training.repulsion_feed import RepulsionFeed, refuse_to_repel_elsewhere, repulsion_feed
from forde.training.run_folder import RunFolder
from forde.training.run_log import silent
from forde.training.running import conclude, train
from forde.training.schedule import Length, SchedulerFactory, Watched
from forde.training.settings import BATCH_SIZE, Settings, grouped
from forde.training.validating import Validator
from forde.turns import turn

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from forde.training.settings import Shorthands


def fit(
    ensemble: Ensemble,
    method: Method | str,
    data: Any,
    *,
    epochs: int,
    batch_size: int = BATCH_SIZE,
    lr: float | None = None,
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    callback: Callable[[Record], None] | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    optimization: Optimization | None = None,
    validation: Any = None,
    batches: Batching | None = None,
    execution: Execution | None = None,
    reporting: Reporting | None = None,
    checkpoint: Checkpointing | None = None,
    **shorthands: Unpack[Shorthands],
) -> History:
    """Train all members together, in place.

    With `swag` and `node-bnn` one network is trained, and the members are made of it when it is done.

    Args:
        ensemble: its members are trained where they are, or on `device`.
        method: a `Method` or the name of one.
        data: `(x, y)` as tensors or arrays, a Dataset of pairs, a DataLoader (its batches are used as they come), or
            what `forde.data.load` returns. x may be a dict or a tuple of tensors, which networks are given by name or
            by position; instead of a pair, a dict may hold the targets under `"labels"` or `"label"`.
        epochs: passes over the data.
        batch_size: samples of a step. The batches of a DataLoader stay as they are, and the log says so.
        lr: learning rate of the default optimizer, SGD with Nesterov momentum 0.9; 0.1 if left out. Weight decay is the
            method's prior.
        optimizer: builds another from the parameters: `lambda p: torch.optim.Adam(p, lr=1e-3)`. The prior still acts.
            A function whose argument is called `named_parameters` is given pairs `(name, parameter)` instead.
        scheduler: builds a scheduler from the optimizer, stepped after each epoch; or from `(optimizer, total_steps)`,
            stepped after each step. By default the paper's (constant to half of the epochs, linear to 1 % at 90 %), or
            the method's own, for the default optimizer and none for another.
        seed: fixes the order of the data and any dropout; the members' initialisation has the ensemble's own seed.
            Threads that train at the same time take turns, step by step, so that each draws its own numbers.
        device: where to train; where the members are if left out.
        precision: `"float32"` (whatever the members' dtype is), or `"bf16"` autocast.
        engine: how steps are run: `"eager"` (a loop over members), `"vectorized"` (members stacked), `"compiled"`
            (traced and compiled once; on a GPU the whole step in one CUDA graph) or `"auto"`, which chooses and says
            so in the log. All give the same numbers.
        callback: called with each epoch's record; for objects that are called more often, and may stop the training,
            see `Reporting.callbacks`.
        run: a folder for settings, metrics, log, checkpoints and the trained ensemble. With it, SIGTERM, Ctrl-C
            and SIGHUP finish the step, write a checkpoint and raise `forde.errors.RunInterruptedError`.
        resume: go on with what is in `run`, be that nothing, a checkpoint, or a finished run, which is loaded. All
            settings that decide the result must be as they were; device, engine and memory may be others.
        optimization: how gradients become steps: `Optimization(clip_norm, accumulate, ema, scheduler_every)`.
        validation: data to judge the ensemble by after each epoch, the share of `data` to hold out for it (0.2), or
            `Validation(data, monitor, patience, restore_best, every, measures, mode)`. The ensemble ends as after its
            best epoch.
        batches: how data become batches: `Batching(drop_last, augmentation, independent, repel_on)`. With
            `repel_on=x` members are compared on other data than the batch.
        execution: how steps are carried out: `Execution(memory, mesh, non_finite)`.
        reporting: what is measured and shown: `Reporting(verbose, diagnostics_every, writers, callbacks)`.
        checkpoint: what `run` keeps: `Checkpointing(every, minutes, keep, about)`.
        shorthands: an option of a group by itself: `fit(..., verbose=False)` is
            `fit(..., reporting=Reporting(verbose=False))`. All have the group's names, but for `independent_data`,
            `checkpoint_every` and `checkpoint_minutes`. None of them warns: each means one thing, and is the shorter
            way to say it. A group and a shorthand of the same group together are an error.

    Returns:
        The history, with the method as fitted to the data.

    >>> from torch import nn
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=3)
    >>> history = fit(ensemble, "forde-pca", (x, y), epochs=2, batch_size=32)
    >>> len(history), sorted(history.records[0])[:3]
    (2, ['bandwidth', 'disagreement', 'epoch'])
    """
    groups = grouped(
        shorthands, optimization=optimization, validation=validation, batches=batches, execution=execution,
        reporting=reporting, checkpoint=checkpoint,
    )  # fmt: skip
    settings = Settings(
        epochs=epochs, batch_size=batch_size, lr=lr, optimizer=optimizer, scheduler=scheduler, seed=seed, device=device,
        precision=precision, engine=engine, callback=callback, run=run, resume=resume, **groups,
    )  # fmt: skip
    method = _checked_method(method, ensemble, settings)
    with turn("fit"), _surroundings(ensemble, settings) as (mesh, folder):
        feeds = feeds_of(data, method, ensemble, settings)
        refuse_uneven_batches(feeds.data.batch_sizes(), mesh)
        with seeded(settings.seed):
            share_random_numbers(mesh, ensemble.device)
            ensemble.train()
            say_what_is_not_trained(ensemble)
            known = _known(ensemble, feeds, folder, mesh)
            feeds = feeds.of_features(ensemble)
            fitted, example = fitted_to(method, ensemble, feeds.data)
            validator = _validator(feeds.validation, ensemble, settings, mesh, example)
            repel_on = repulsion_feed(feeds.repel_on, ensemble, fitted, None if example is None else example[0])
            plan = fitted.plan(ensemble, data=training_data(ensemble, feeds.data), epochs=epochs, seed=seed)
            history = History(fitted)
            with _step(plan, feeds.data, settings, mesh, example) as step:
                loop = _loop(step, feeds.data, settings, plan, method=fitted, validator=validator, repel_on=repel_on)
                finished = _begin(loop, settings, folder, mesh, method=method, known=known)
                listeners = _listeners(loop, settings, mesh)
                if not finished:
                    train(loop, epochs, folder, listeners, verbose=settings.reporting.verbose and mesh.is_main_process)
                    conclude(loop, history, folder)
            if not finished:
                _make_members(plan, ensemble, feeds.data, settings.precision)
            ensemble.eval()
            if folder is not None and finished:
                history.records, outcome = folder.load_finished(ensemble)
                history.stopped, history.best_epoch = outcome.stopped, outcome.best_epoch
            else:
                _finish(ensemble, history, folder, listeners)
    return history


def _finish(ensemble: Ensemble, history: History, folder: RunFolder | None, listeners: Listeners) -> None:
    """Save what was trained, and then call those who wait for the end."""
    if folder is not None:
        folder.finish(ensemble, Outcome(len(history), history.stopped, history.best_epoch))
    listeners.end(ensemble)


def _checked_method(method: Method | str, ensemble: Ensemble, settings: Settings) -> Method:
    method = named_method(method) if isinstance(method, str) else method
    if not isinstance(method, Method):
        raise FordeError(
            f"method is {method!r}, but a forde.Method or the name of one, such as 'forde-pca', was expected."
        )
    refuse_nothing_to_train(ensemble)
    if method.one_network is not None and settings.validation is not None:
        raise FordeError(
            f"{method.name} makes its members when training is done, so there is no ensemble to validate before; leave "
            "validation out, and evaluate what fit has trained."
        )
    if method.one_network is not None and settings.optimization.ema is not None:
        raise FordeError(
            f"{method.name} makes its members of one network when training is done, so they have no average; leave ema "
            "out (swag is an average itself)."
        )
    if method.one_network is not None and (settings.batches.independent or settings.execution.mesh is not None):
        option = "independent_data" if settings.batches.independent else "mesh"
        raise FordeError(
            f"{method.name} trains one network, in one process; start it without torchrun and leave {option} out."
        )
    if settings.batches.independent and method.space is not None:
        raise FordeError("independent_data needs members that do not interact; use it with 'deep-ensemble' only.")
    if settings.batches.repel_on is not None:
        refuse_to_repel_elsewhere(method)
    return method


@contextmanager
def _surroundings(ensemble: Ensemble, settings: Settings) -> Iterator[tuple[Mesh, RunFolder | None]]:
    """The processes that train together and the run's folder, with members on their device and the same everywhere."""
    shape, device = settings.execution.mesh, settings.device
    with ExitStack() as stack:
        for writer in settings.reporting.writers:
            stack.enter_context(closing(writer))
        target = ensemble.device if device is None else available_device(device, own=shape is not None)
        shape = (1, 1) if shape is None else checked_shape(shape, ensemble.n_members)
        mesh = stack.enter_context(joined(shape, target))
        if not mesh.is_main_process:  # it would say the same as the first process
            stack.enter_context(silent())
        folder = None
        if settings.run is not None:
            folder = RunFolder(
                settings.run, settings.checkpoint, epochs=settings.epochs, resume=settings.resume, mesh=mesh
            )
            stack.enter_context(folder.logging())
        stack.enter_context(explaining_memory(settings.execution.memory))
        ensemble.to(target)
        share_members(ensemble, mesh)
        yield mesh, folder


def _known(ensemble: Ensemble, feeds: Feeds, folder: RunFolder | None, mesh: Mesh) -> dict[str, Any] | None:
    """What ensemble and data are known again by, before an engine stacks the members.

    None where nobody will ask: for a run that nobody resumes and no other process shares.
    """
    if folder is None and mesh is ALONE:
        return None
    samples = {name: None if folder is None else folder.samples_read(name) for name in feeds.named()}
    return known_by(ensemble, feeds.named(), samples, mesh)


def _validator(
    held: Feed | None, ensemble: Ensemble, settings: Settings, mesh: Mesh, example: tuple[Input, Tensor] | None
) -> Validator | None:
    """What measures the validation data, once it was seen that it can."""
    if held is None or settings.validation is None:
        return None
    keeps = settings.validation.restore_best or settings.run is not None
    validator = Validator(held, ensemble, settings.validation, keeps=keeps, first=mesh.first)
    validator.check(None if example is None else example[0])
    return validator


@contextmanager
def _step(
    plan: Plan, feed: Feed, settings: Settings, mesh: Mesh, example: tuple[Input, Tensor] | None
) -> Iterator[Step]:
    """The step that trains what the plan says; afterwards these are plain networks again, without gradients."""
    rows = settings.batch_size if example is None else len(example[1])
    example = None if example is None else plan.batch(*example)
    step = make_engine(
        settings.engine, plan.trained, plan.method, settings.precision, settings.execution.memory,
        steps=settings.epochs * max(1, feed.size // rows), example=example, mesh=mesh,
        accumulate=settings.optimization.accumulate,
        repels_elsewhere=settings.batches.repel_on is not None, independent=settings.batches.independent,
    )  # fmt: skip
    try:
        yield step
    finally:
        step.close()
        plan.trained.zero_grad(set_to_none=True)


def _loop(
    step: Step,
    feed: Feed,
    settings: Settings,
    plan: Plan,
    *,
    method: Method,
    validator: Validator | None,
    repel_on: RepulsionFeed | None,
) -> Loop:
    optimization = settings.optimization
    watched = None if validator is None else Watched(validator.key, validator.options.higher_is_better)
    length, average = Length(settings.epochs, feed.steps()), None
    optimizer, schedule = make_optimizer(
        step, method, length=length, lr=settings.lr, optimizer=settings.optimizer,
        scheduler=settings.scheduler, scheduler_every=optimization.scheduler_every, watched=watched, plan=plan,
    )  # fmt: skip
    if optimization.clip_norm is not None:
        clip_before_each_step(optimizer, step.runner, optimization.clip_norm)
    if optimization.ema is not None:
        average = WeightAverage(step, optimization.ema)
        say_if_too_slow(optimization.ema, length.times("step"))
    return Loop(
        step, optimizer, schedule, feed, seed=settings.seed, independent_data=settings.batches.independent,
        diagnostics_every=settings.reporting.diagnostics_every, non_finite=settings.execution.non_finite, plan=plan,
        validator=validator, repel_on=repel_on, average=average,
    )  # fmt: skip


def _listeners(loop: Loop, settings: Settings, mesh: Mesh) -> Listeners:
    writers = settings.reporting.writers if mesh.is_main_process else ()
    of_records = [*(writer.record for writer in writers), *filter(None, [settings.callback])]
    return Listeners(settings.reporting.callbacks, of_records, Training(loop, settings.epochs), mesh)


def _begin(
    loop: Loop,
    settings: Settings,
    folder: RunFolder | None,
    mesh: Mesh,
    *,
    method: Method,
    known: dict[str, Any] | None,
) -> bool:
    """Write down what is trained and how, or refuse what another start or process had otherwise.

    Args:
        method: as it was asked for, before it was fitted to the data.
        known: what ensemble and data are known again by; None where nobody asks.

    Returns:
        Whether the run has finished already.
    """
    if known is None:
        return False
    device = loop.ensemble.device
    decisive = decisive_settings(
        known, method, loop.engine, loop.optimizer, loop.schedule, about=settings.checkpoint.about, **settings.decisive
    )
    how = settings.how(device, mesh.shape)
    refuse_different_processes({**decisive, "how": described({**how, "device": device.type})}, mesh)
    if folder is None:
        return False
    folder.begin(decisive, how, environment(loop.ensemble, loop.engine), fixed=partial(_fixed, loop))
    return folder.finished


def _fixed(loop: Loop, epochs: int) -> str | None:
    """Why a run of so many epochs cannot become a longer one; None where it can."""
    if loop.plan.makes_members:
        return f"{loop.engine.method.name} makes its members when training is done"
    return None if loop.schedule is None else loop.schedule.fixed(Length(epochs, loop.feed.steps()))


def _make_members(plan: Plan, ensemble: Ensemble, feed: Feed, precision: Precision) -> None:
    """Where a method trains something else than the members: what becomes of them."""
    if plan.makes_members:
        with torch.autocast(ensemble.device.type, torch.bfloat16, enabled=precision == "bf16"):
            plan.make_members(ensemble, partial(_pass, feed))


def _pass(feed: Feed, generator: torch.Generator) -> Iterator[Input]:
    """The inputs of one more epoch, the last, smaller batch as well where they are forde's to cut."""
    whole = copy.copy(feed)
    whole.drop_last = False  # type: ignore[attr-defined]
    return (x for x, _ in whole.epoch(generator))
