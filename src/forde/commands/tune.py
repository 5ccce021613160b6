"""`forde tune`: the strength and α that bear perturbed inputs best, at a limited price on clean ones."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forde.commands.options import Data, DataDir, Device, Engine, JsonFile, Precision, Seed
from forde.commands.training_options import (
    Augment,
    BatchSize,
    Config,
    Drop,
    Epochs,
    Hidden,
    Members,
    Network,
    Overrides,
    Rate,
    Target,
    Task,
    Test,
    WeightDecay,
)
from forde.errors import FordeError, RunInterruptedError

if TYPE_CHECKING:
    from forde.tuning import Tuning


def tune(
    ctx: typer.Context,
    data: Data,
    epochs: Epochs,
    out: Annotated[Path, typer.Option(help="Folder for the study; the same command goes on with what is in it.")],
    trials: Annotated[int, typer.Option(min=2, help="In all, those of earlier calls included.")] = 20,
    clean_budget: Annotated[
        float, typer.Option(min=0, help="Nats of clean NLL that may be lost against the deep ensemble.")
    ] = 0.01,
    search: Annotated[
        str,
        typer.Option(
            help="Of strength, alpha, lr and weight_decay, each with a range where it shall be another, as in "
            "strength=1:30,alpha,lr."
        ),
    ] = "strength,alpha",
    seeds: Annotated[
        int, typer.Option(min=1, help="Trainings for each trial; several count differences between seeds among errors.")
    ] = 1,
    validation: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the training data that trials are judged by.")
    ] = 0.2,
    storage: Annotated[
        str | None,
        typer.Option(help="URL of an Optuna storage that several machines share; a file in --out if left out."),
    ] = None,
    study: Annotated[str, typer.Option(help="Name of the study in the storage.")] = "forde",
    target: Target = None,
    task: Task = None,
    drop: Drop = None,
    test: Test = None,
    model: Network = "mlp",
    hidden: Hidden = "128,128",
    members: Members = 5,
    batch_size: BatchSize = 128,
    lr: Rate = None,
    weight_decay: WeightDecay = 5e-4,
    seed: Seed = 0,
    augment: Augment = False,
    device: Device = None,
    precision: Precision = "float32",
    engine: Engine = "auto",
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
    json_file: JsonFile = None,
) -> None:
    """Find the strength and alpha of the recipe forde on a part of the training data, under perturbations of its own.

    The perturbations are none of the corruptions that runs are tested under, and the test split is never looked at.
    What costs more clean NLL than --clean-budget allows is never chosen. The first trial is the deep ensemble, which
    all are compared with. The same command goes on wherever it was stopped; a larger --trials adds some.

    Example: forde tune --data digits --epochs 10 --trials 20 --out tuning/digits
    """
    from forde.commands.opening import imported
    from forde.commands.options import chosen_device
    from forde.commands.preparing import loaded, parted, widths
    from forde.commands.reporting import sayer, write_report
    from forde.models.building import MODELS
    from forde.tuning import tune as find

    say = sayer(json_file)
    _refuse_run(out)
    given = loaded(data, data_dir, target=target, task=task, drop=drop, augment=augment)
    given, _ = parted(given, test, name=data, seed=seed)
    try:
        found = find(
            given,
            out,
            epochs=epochs,
            model=model,
            hidden=widths(hidden),
            make_network=imported(model) if model not in MODELS and ":" in model else None,
            members=members,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            augment=augment,
            search=search,
            trials=trials,
            clean_budget=clean_budget,
            validation=validation,
            seeds=seeds,
            seed=seed,
            storage=storage,
            name=study,
            device=chosen_device(device),
            precision=precision,
            engine=engine,
            on_trial=_Lines(trials),
        )
    except (RunInterruptedError, KeyboardInterrupt) as stopped:
        by = stopped.signal if isinstance(stopped, RunInterruptedError) else signal.SIGINT
        raise RunInterruptedError(
            f"tuning stopped by {by.name}; every trial that was done is kept in '{out}', and the same command goes on.",
            by,
        ) from None
    say(f"{found}\n")
    _draw(found, out)
    command = training_command(ctx, found)
    say(f"to train it on all of the training data: {command}")
    write_report("tune", {**found.to_dict(), "train": command}, json_file)


class _Lines:
    """One line for each trial on stderr, with the time left."""

    def __init__(self, total: int) -> None:
        self.total, self.begun, self.done = total, time.monotonic(), 0

    def __call__(self, words: str, found: Tuning) -> None:
        self.done += 1
        finished = sum(found.counts[state] for state in ("finished", "pruned", "diverged"))
        left = (time.monotonic() - self.begun) / self.done * max(self.total - finished, 0)
        typer.echo(f"{finished}/{self.total} {words}, {left:.0f} s left", err=True)


def _refuse_run(out: Path) -> None:
    from forde.training.run_folder import CONFIG

    if out.is_file() or (out / CONFIG).exists():
        what = "is a file" if out.is_file() else "holds a run"
        raise FordeError(f"--out {out} {what}, but a folder for a study was expected; give another one.")


def _draw(found: Tuning, out: Path) -> None:
    """The frontier, where there is something to draw with."""
    try:
        from forde.report.tuning_figure import draw_frontier

        draw_frontier(found.to_dict(), out)
    except ImportError as error:
        typer.echo(f"Note: no figure was drawn, as {error.name} is not installed: pip install 'forde[plot]'", err=True)
    else:
        typer.echo(f"frontier in {out / 'frontier.png'}, all numbers in {out / 'tuning.json'}", err=True)


def training_command(ctx: typer.Context, found: Tuning) -> str:
    """`forde train` with what was chosen and the settings of the study."""
    from forde.commands.asked import command_of

    names = ("data", "data_dir", "target", "task", "drop", "test", "model", "hidden", "members", "epochs", "batch_size",
             "lr", "weight_decay", "augment", "seed", "device", "precision", "engine")  # fmt: skip
    chosen: dict[str, Any] = {"method": "forde" if found.values else "deep-ensemble", **found.values}
    words = command_of(ctx, command="train", only=[name for name in names if name not in chosen])
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.items())
    return f"{words} {flags} --out runs/tuned"
