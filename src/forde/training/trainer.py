"""`fit`: train an ensemble with a method on data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forde.data.description import Images, Table
from forde.distributed.mesh import ALONE, Mesh, Shape, checked_shape, joined, own_device
from forde.distributed.sharded import refuse_uneven_batches, share_members, share_random_numbers
from forde.engine import EngineName, make_engine
from forde.ensemble import Ensemble
from forde.errors import FordeError, NonFiniteError, unknown_name, whole_number
from forde.methods import Method
from forde.methods import method as named_method
from forde.priors import TrainingData
from forde.progress import progress_bar
from forde.step.checks import explaining_memory
from forde.step.records import Memory, Precision
from forde.training.configuration import (
    decisive_settings,
    environment,
    known_by,
    refuse_different_processes,
)
from forde.training.feed import Feed, make_feed
from forde.training.history import History, Record
from forde.training.image_feed import Augmentation, ImageFeed
from forde.training.loop import Loop
from forde.training.numerics import NonFinite
from forde.training.optimiser import make_optimiser, refuse_nothing_to_train
from forde.training.plain import described
from forde.training.run_folder import RunFolder, Schedule
from forde.training.run_log import silent
from forde.training.signals import StopRequest, stop_requests
from forde.training.writers import Writer
from forde.turns import paused, turn

log = logging.getLogger(__name__)


def fit(
    ensemble: Ensemble,
    method: Method | str,
    data: Any,
    *,
    epochs: int,
    batch_size: int = 128,
    lr: float | None = None,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    engine: EngineName = "auto",
    memory: Memory = "speed",
    drop_last: bool = True,
    augmentation: Augmentation | None = None,
    independent_data: bool = False,
    diagnostics_every: int = 1,
    progress: bool = True,
    callback: Callable[[Record], None] | None = None,
    writers: Sequence[Writer] = (),
    run: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    checkpoint_minutes: float | None = 10.0,
    keep: int = 2,
    non_finite: NonFinite = "stop",
    mesh: Shape | Literal["auto"] | None = None,
) -> History:
    """Train all members together, in place.

    Args:
        ensemble: its members are trained where they are, or on `device`.
        method: a `Method` or the name of one.
        data: `(x, y)` as tensors or arrays, a Dataset of pairs, a DataLoader (its batches are used as they come), or
            what `forde.data.load` returns.
        epochs: passes over the data.
        batch_size: ignored for a DataLoader.
        lr: learning rate of the default optimiser, SGD with Nesterov momentum 0.9; 0.1 if left out. Weight decay is the
            method's prior.
        optimizer: builds another from the parameters: `lambda p: torch.optim.Adam(p, lr=1e-3)`. The prior still acts.
        scheduler: builds a scheduler, stepped once per epoch; by default the paper's (constant to half of the epochs,
            linear to 1 % at 90 %) for the default optimiser and none for another.
        seed: fixes the order of the data and any dropout; the members' initialisation has the ensemble's own seed.
            Threads that train at the same time take turns, step by step, so that each draws its own numbers.
        precision: `"float32"` (whatever the members' dtype is), or `"bf16"` autocast.
        engine: how steps are run: `"eager"` (a loop over members), `"vectorized"` (members stacked), `"compiled"`
            (traced and compiled once; on a GPU the whole step in one CUDA graph) or `"auto"`, which chooses and says
            so in the log. All give the same numbers.
        memory: `"speed"` keeps every member's graph while members are compared; `"low"` keeps none and makes one
            member's forward pass after another again (a third more arithmetic), `"balanced"` does so for half of them.
        drop_last: leave out the last, smaller batch of an epoch (other samples each time).
        augmentation: random crops and flips of `forde.data.Images`, made on the device.
        independent_data: an order of its own for each member, as classical deep ensembles; only without repulsion.
        diagnostics_every: measure disagreement and gradient cosine every so many epochs; 0 for never.
        progress: show a bar on a terminal.
        callback: called with each epoch's record.
        writers: where else records go: `forde.training.writers.TensorBoard`, `WeightsAndBiases`, or your own.
        run: a folder for settings, metrics, log, checkpoints and the trained ensemble. With it, SIGTERM, Ctrl-C
            and SIGHUP finish the step, write a checkpoint and raise `forde.errors.RunInterruptedError`.
        about: what else belongs to the run, such as how its data was prepared, as plain JSON values: kept in the run's
            `config.json`, and must be the same when it is resumed.
        resume: go on with what is in `run`, be that nothing, a checkpoint, or a finished run, which is loaded. All
            settings that decide the result must be as they were; device, engine and memory may be others.
        checkpoint_every: write a checkpoint after every so many epochs.
        checkpoint_minutes: write one after the step at which so many minutes have passed since the last; 0 for every
            step, None for never.
        keep: how many checkpoints stay.
        non_finite: what to do when a loss or gradient is NaN or infinite: `"stop"` before the weights are touched,
            `"skip"` the step (the record's `skipped` counts them), or `"roll_back"` to the last checkpoint and go on
            with half the learning rate, at most 10 times (needs `run`).
        mesh: (shards of members, shards of the batch) where torchrun started as many processes and each calls `fit`
            with the same arguments; `"auto"` takes as many shards of members as divide M. All processes end with the
            whole ensemble; the first one writes `run` and feeds `writers`, each calls its own `callback`.

    Returns:
        The history, with the method as fitted to the data.

    >>> from torch import nn
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=3)
    >>> history = fit(ensemble, "forde-pca", (x, y), epochs=2, batch_size=32)
    >>> len(history), sorted(history.records[0])[:3]
    (2, ['bandwidth', 'disagreement', 'epoch'])
    """
    method = named_method(method) if isinstance(method, str) else method
    _check_options(
        precision, non_finite, run=run, resume=resume, about=about,
        at_least_0={"seed": seed, "diagnostics_every": diagnostics_every},
        at_least_1={"epochs": epochs, "batch_size": batch_size},
    )  # fmt: skip
    _check_method(method, ensemble, independent_data=independent_data)
    with turn("fit"), ExitStack() as stack:
        for writer in writers:
            stack.enter_context(closing(writer))
        target = available_device(device, own=mesh is not None) if device is not None else ensemble.device
        group = stack.enter_context(_joined(mesh, ensemble, target))
        folder = (
            RunFolder(run, Schedule(checkpoint_every, checkpoint_minutes, keep), resume=resume, mesh=group)
            if run is not None
            else None
        )
        stack.enter_context(nullcontext() if folder is None else folder.logging())
        stack.enter_context(explaining_memory(memory))
        ensemble.to(target)
        share_members(ensemble, group)
        feed = _feed(data, ensemble, batch_size=batch_size, drop_last=drop_last, augmentation=augmentation)
        refuse_uneven_batches(feed.batch_sizes(), group)
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        torch.manual_seed(seed)
        share_random_numbers(group, target)
        ensemble.train()
        _say_what_is_not_trained(ensemble)
        # Before an engine stacks the members; a run that nobody resumes and no other process shares needs none of it.
        samples = folder.samples_read() if folder is not None else None
        known = {} if folder is None and group is ALONE else known_by(ensemble, feed, samples, group)
        fitted = _fitted(method, ensemble, feed)
        history, planned = History(fitted), epochs * max(1, feed.size // batch_size)
        name: EngineName = "eager" if independent_data else engine
        runner = make_engine(name, ensemble, fitted, precision, memory, steps=planned, mesh=group)
        try:
            tuner, schedule = make_optimiser(
                runner, fitted, epochs=epochs, lr=lr, optimizer=optimizer, scheduler=scheduler
            )
            loop = Loop(
                runner, tuner, schedule, feed, seed=seed, independent_data=independent_data,
                diagnostics_every=diagnostics_every, non_finite=non_finite,
            )  # fmt: skip
            how = {
                "device": str(target), "engine": engine, "memory": memory, "mesh": group.shape,
                "diagnostics_every": diagnostics_every, "checkpoint_every": checkpoint_every,
                "checkpoint_minutes": checkpoint_minutes, "keep": keep, "non_finite": non_finite,
            }  # fmt: skip
            if known:
                decisive = decisive_settings(
                    known, method, runner, tuner, schedule, epochs=epochs, batch_size=batch_size, seed=seed,
                    precision=precision, drop_last=drop_last, augmentation=augmentation,
                    independent_data=independent_data, about=about,
                )  # fmt: skip
                refuse_different_processes({**decisive, "how": described({**how, "device": target.type})}, group)
            if folder is not None:
                folder.begin(decisive, how, environment(ensemble, runner))
            finished = folder is not None and folder.finished
            if not finished:
                heard = [writer.record for writer in writers if group.leads]
                with progress_bar(epochs, fitted.name, show=progress and group.leads) as advance:
                    _train(loop, epochs, folder, advance, heard if callback is None else [*heard, callback])
                history.records = loop.records
        finally:
            runner.close()
            ensemble.zero_grad(set_to_none=True)
        ensemble.eval()
        if folder is not None and finished:
            history.records = folder.load_finished(ensemble)
        elif folder is not None:
            folder.finish(ensemble)
    return history


def _check_method(method: Method, ensemble: Ensemble, *, independent_data: bool) -> None:
    if not isinstance(method, Method):
        raise FordeError(
            f"method is {method!r}, but a forde.Method or the name of one, such as 'forde-pca', was expected."
        )
    refuse_nothing_to_train(ensemble)
    if independent_data and method.space is not None:
        raise FordeError("independent_data needs members that do not interact; use it with 'deep-ensemble' only.")


def _check_options(
    precision: str,
    non_finite: str,
    *,
    run: str | Path | None,
    resume: bool,
    about: object,
    at_least_0: dict[str, int],
    at_least_1: dict[str, int],
) -> None:
    for least, options in enumerate((at_least_0, at_least_1)):
        for name, value in options.items():
            whole_number(name, value, at_least=least)
    if run is None and (resume or non_finite == "roll_back"):
        raise FordeError("resume and non_finite='roll_back' need checkpoints; give a folder for them as run=.")
    if run is None and about is not None:
        raise FordeError("about is kept in the folder of a run; give one as run=, or leave about out.")
    if precision not in ("float32", "bf16"):
        raise FordeError(f"precision is {precision!r}, but 'float32' or 'bf16' was expected.")
    if non_finite not in (choices := ("stop", "skip", "roll_back")):
        raise unknown_name("non_finite", non_finite, choices)


@contextmanager
def _joined(mesh: Shape | Literal["auto"] | None, ensemble: Ensemble, device: torch.device) -> Iterator[Mesh]:
    """The mesh asked for; processes but the first are silent, as they would say the same."""
    shape = (1, 1) if mesh is None else checked_shape(mesh, ensemble.n_members)
    with joined(shape, device) as found, nullcontext() if found.leads else silent():
        yield found


def _say_what_is_not_trained(ensemble: Ensemble) -> None:
    """One line about layers that `make_network` left in evaluation mode."""
    names = sorted(ensemble.left_in_evaluation)
    if any(name.isdecimal() for name in names):
        log.warning(
            "make_network() returned a network in evaluation mode, so dropout and BatchNorm stay in it while weights "
            "are trained; call .train() on the network there if that is not what you want."
        )
    elif names:
        log.info("%d layers stay in evaluation mode, as make_network() left them: %s, ...", len(names), names[0])


def _fitted(method: Method, ensemble: Ensemble, feed: Feed) -> Method:
    """The method as it is with this data; the likelihood learns from it too."""
    first = next(iter(feed.pairs()), None)
    if first is not None:
        _look_at_inputs(method, ensemble, first[0])
        ensemble.likelihood = ensemble.likelihood.knowing(first[1])
    inputs = TrainingData(lambda: map(ensemble.as_input, feed.inputs()), feed.size)
    fitted = method.prepare(ensemble.members[0], inputs)
    if fitted.metric_note is not None:
        log.info("%s: %s", fitted.name, fitted.metric_note)
    return fitted


def _train(
    loop: Loop,
    epochs: int,
    folder: RunFolder | None,
    advance: Callable[[str], None],
    listeners: Sequence[Callable[[Record], None]],
) -> None:
    """All epochs that are still to be done."""
    with nullcontext(StopRequest()) if folder is None else stop_requests() as request:
        if folder is not None:
            folder.take_up(loop)
        for _ in loop.records:
            advance("resumed")
        while loop.epoch < epochs:
            try:
                record = loop.run_epoch(
                    last=loop.epoch == epochs - 1,
                    after_step=lambda: None if folder is None else folder.after_step(loop, request),
                )
            except NonFiniteError as error:
                if folder is None or loop.non_finite != "roll_back":
                    raise
                folder.roll_back(loop, error)
                continue
            advance(f"loss {record['loss']:.3f}  repulsion {record['repulsion']:+.4f}")
            if folder is not None:
                folder.after_epoch(loop, record, request)
            with paused() if listeners else nullcontext():  # what the user does there may wait for other threads
                for listener in listeners:
                    listener(record)


def _feed(
    data: Any, ensemble: Ensemble, *, batch_size: int, drop_last: bool, augmentation: Augmentation | None
) -> Feed:
    if isinstance(data, Images):
        ensemble.likelihood.check_targets(torch.as_tensor(data.labels))
        return ImageFeed(
            data.images,
            data.labels,
            mean=data.description.mean,
            std=data.description.std,
            batch_size=batch_size,
            device=ensemble.device,
            dtype=ensemble.dtype,
            augmentation=augmentation,
            drop_last=drop_last,
        )
    if augmentation is not None:
        raise FordeError("augmentation needs images as bytes, from forde.data.load or forde.data.Images.")
    pair = (data.x, data.y) if isinstance(data, Table) else data
    return make_feed(pair, ensemble, batch_size=batch_size, drop_last=drop_last)


def available_device(device: str | torch.device, *, own: bool = False) -> torch.device:
    """The device asked for, if this machine has it; with `own`, of several GPUs the one for this process."""
    try:
        target = own_device(torch.device(device)) if own else torch.device(device)
    except RuntimeError:
        raise FordeError(f"unknown device '{device}'; expected 'cpu', 'cuda', 'cuda:0' or 'mps'.") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise FordeError("device 'cuda' was asked for, but torch sees no NVIDIA GPU here; use device='cpu'.")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise FordeError(
            f"device '{target}' was asked for, but torch sees {torch.cuda.device_count()} GPU(s); use 'cuda:0'."
        )
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise FordeError("device 'mps' was asked for, but torch sees no Apple GPU here; use device='cpu'.")
    return target


def _look_at_inputs(method: Method, ensemble: Ensemble, x: Tensor) -> None:
    if method.space is not None and method.space.needs_input_gradient and x[0].numel() == 1 and ensemble.n_members > 1:
        log.warning(
            "The inputs have one feature, so every input gradient points up or down and members do not repel; "
            "add a feature, for example (x, x²)."
        )
    embeds = any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in ensemble.members[0].modules())
    if x.dtype == torch.uint8 and not embeds and int(x.max()) > 1:
        log.warning(
            "The inputs are bytes up to %d and reach the network as they are; if it does not scale them itself, pass "
            "x.float() / 255 or forde.data.Images.",
            int(x.max()),
        )
