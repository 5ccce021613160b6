"""`forde train`: train a network on a named data set or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from forde.commands.options import Data, DataDir, Device, Engine, JsonFile, Method, Precision, Resume, Seed
from forde.commands.training_options import (
    Augment,
    BatchSize,
    Config,
    Drop,
    Epochs,
    Hidden,
    Members,
    Network,
    Optimizer,
    Overrides,
    Rate,
    Target,
    Task,
    Test,
    WeightDecay,
)


def train(
    ctx: typer.Context,
    data: Data,
    epochs: Epochs,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "--run", "--run-folder", help="Folder for settings, metrics, log, checkpoints and the ensemble."
        ),
    ],
    target: Target = None,
    task: Task = None,
    drop: Drop = None,
    test: Test = None,
    model: Network = "mlp",
    hidden: Hidden = "128,128",
    method: Method = "forde-pca",
    strength: Annotated[
        float | None, typer.Option(min=0, help="Of the repulsion, for methods that have one: forde, lit.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(min=0, max=1, help="Between identity (0) and PCA (1): forde, forde-tuned.")
    ] = None,
    prior: Annotated[str | None, typer.Option(help="On the weights: isotropic or empcov.")] = None,
    members: Members = 5,
    resume: Resume = False,
    batch_size: BatchSize = 128,
    optimizer: Optimizer = None,
    lr: Rate = None,
    weight_decay: WeightDecay = 5e-4,
    validation: Annotated[
        str | None,
        typer.Option(
            help="What the ensemble is judged by after each epoch: a share to hold out, as in 0.2; a split of the "
            "data, as in valid; or other data. The ensemble ends as after its best epoch."
        ),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many epochs without a better one on the validation data.")
    ] = None,
    monitor: Annotated[
        str | None, typer.Option(help="What better means: nll (if left out), accuracy, brier, ece, rmse or crps.")
    ] = None,
    seed: Seed = 0,
    augment: Augment = False,
    device: Device = None,
    precision: Precision = "float32",
    engine: Engine = "auto",
    memory: Annotated[str, typer.Option(help="speed, balanced or low.")] = "speed",
    checkpoint_every: Annotated[int | None, typer.Option(min=1, help="Checkpoint after so many epochs.")] = None,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Checkpoint after so many minutes.")] = 10.0,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that stay.")] = 2,
    non_finite: Annotated[str, typer.Option(help="After a loss that is NaN: stop, skip or roll_back.")] = "stop",
    mesh: Annotated[
        str | None,
        typer.Option(
            help="Under torchrun: shards of members x shards of the batch, as in 2x4; if left out, as many shards of "
            "members as divide both their number and the processes."
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
    json_file: JsonFile = None,
) -> None:
    """Train an ensemble; with --resume the same command goes on wherever it was interrupted.

    Example: forde train --data digits --epochs 20 --out runs/a --resume

    The folder says how the networks are built and what they were trained on, so that forde evaluate, predict and report
    need nothing else. A folder that holds a run already is refused without --resume.

    Tables are standardised with the statistics of the training rows; forde.load_run(RUN).predict(rows) undoes it.

    A network of your own is a function without arguments, which is looked for where Python finds modules, and here:

    Example: forde train --data pictures --model my_networks:small --epochs 5 --out runs/own

    On a terminal there is a bar, elsewhere a line for each epoch.

    A loss far above that of a constant prediction is said on stderr; the exit code stays 0, as all files are there.

    On several processes: torchrun --nproc-per-node=4 -m forde train ... --out runs/a --mesh 2x2
    """
    import torch

    import forde
    from forde.commands.asked import command_of, settings_of
    from forde.commands.outcome import described, explained, keep_reference, refuse_unvalidated
    from forde.commands.preparing import chosen_method, loaded, parted, prepared
    from forde.commands.reporting import epochs_said, sayer, write_report
    from forde.distributed.mesh import parse_shape, processes
    from forde.training.outcome import Outcome
    from forde.training.trained import HELD_OUT, RECIPE, SETTINGS, content_name
    from forde.training.usual import RATES, optimizer_options, usual_optimizer
    from forde.training.writers import TensorBoard

    refuse_unvalidated(validation, patience=patience, monitor=monitor)
    given = loaded(data, data_dir, target=target, task=task, drop=drop, augment=augment)
    given, held = parted(given, test, name=data, seed=seed)
    ready = prepared(
        given, name=data, data_dir=data_dir, model=model, hidden=hidden, validation=validation, seed=seed
    )  # fmt: skip
    first = int(os.environ.get("RANK", "0")) == 0  # of several processes: it speaks for all
    say = sayer(json_file) if first else _nothing
    say(described(data, ready, held, guessed=task is None))
    kind = optimizer or usual_optimizer(ready.recipe.n_classes)
    rate = lr if lr is not None else RATES.get(kind, 0.0)
    chosen = chosen_method(ctx, method, weight_decay=weight_decay, strength=strength, alpha=alpha, prior=prior)
    ensemble = forde.Ensemble(ready.make_network, members, seed=seed, likelihood=ready.recipe.likelihood)
    before = Outcome.read(out)
    with epochs_said(say):
        history = forde.fit(
            ensemble,
            chosen,
            ready.standard,
            epochs=epochs,
            batch_size=batch_size,
            **optimizer_options(kind, rate, epochs, chosen),
            seed=seed,
            device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
            precision=precision,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            run=out,
            resume=resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0,  # torchrun started us again
            validation=ready.judged_by(monitor, patience),
            batches=forde.Batching(augmentation=forde.Augmentation() if augment else None),
            execution=forde.Execution(
                memory=memory,  # type: ignore[arg-type]
                mesh=parse_shape(mesh) if mesh is not None else "auto" if processes() > 1 else None,
                non_finite=non_finite,  # type: ignore[arg-type]
            ),
            reporting=forde.Reporting(writers=[TensorBoard(out / "tensorboard")] if tensorboard else []),
            checkpoint=forde.Checkpointing(
                checkpoint_every,
                checkpoint_minutes,
                keep,
                about={RECIPE: ready.recipe.to_json()},
                note={
                    SETTINGS: settings_of(ctx),
                    "command": command_of(ctx),
                    **({} if held is None else {HELD_OUT: content_name(held)}),
                },
            ),
        )
    if before is not None and before == Outcome.read(out):
        say(f"'{out}' had finished already, so nothing was trained")
    if first:
        keep_reference(ensemble, ready, out)
        outcome = explained(history, ready)
        say(f"{method}, {members} × {model} on {data}: {outcome}")
        other = "" if "test" in given.description.splits else " --data OTHER"
        other += f" --model {model}" if ":" in model else ""
        say(f"ensemble in {out / 'ensemble'}, records in {out / 'metrics.jsonl'}")
        say(f"to test it: forde evaluate {out}{other}")
        write_report("train", {"run": str(out), "settings": settings_of(ctx), "epochs": history.records,
                               "best_epoch": history.best_epoch, "stopped": history.stopped}, json_file)  # fmt: skip


def _nothing(text: str) -> None:
    """What a process says that another one speaks for."""
