"""`forde train`: train a library network on a named data set or a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from forde.errors import FordeError, unknown_name

MODELS = ("mlp", "resnet18", "preact_resnet18", "wrn16_4")


def train(
    data: Annotated[str, typer.Option(help="A data set by name (`forde data list`), or a file or folder.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")],
    run: Annotated[
        Path,
        typer.Option("--run", "--run-folder", help="Folder for settings, metrics, log, checkpoints and the ensemble."),
    ],
    model: Annotated[str, typer.Option(help=f"Network: {', '.join(MODELS)}.")] = "mlp",
    hidden: Annotated[str, typer.Option(help="Widths of the perceptron's hidden layers.")] = "128,128",
    method: Annotated[str, typer.Option(help="A method that `forde methods` shows.")] = "forde-pca",
    members: Annotated[int, typer.Option(min=1, help="Networks in the ensemble.")] = 5,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder, if anything.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate of SGD with Nesterov momentum 0.9.")] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="Of the prior on the weights.")] = 5e-4,
    seed: Annotated[int, typer.Option(help="Of initialisation and data order.")] = 0,
    augment: Annotated[bool, typer.Option("--augment", help="Random crops and flips of images.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; a GPU where there is one if left out.")] = None,
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
    engine: Annotated[str, typer.Option(help="How steps are run.")] = "auto",
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
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are; FORDE_DATA if left out.")] = None,
) -> None:
    """Train an ensemble; with --resume the same command goes on wherever it was interrupted.

    Example: forde train --data digits --epochs 20 --run runs/a --resume

    On several processes: torchrun --nproc-per-node=4 -m forde train ... --run-folder runs/a --mesh 2x2
    (torchrun takes --run for its own --run-path)
    """
    import torch

    import forde
    from forde.data.description import Images
    from forde.engine.mesh import parse_shape, processes
    from forde.training.writers import TensorBoard

    loaded = forde.data.load(data, "train", data_dir)
    if augment and not isinstance(loaded, Images):
        raise FordeError(f"--augment needs images, but '{data}' is a table; leave it out.")
    ensemble = forde.Ensemble(
        network_factory(model, hidden, loaded),
        members,
        seed=seed,
        likelihood="classification" if loaded.description.n_classes else "learned-noise-regression",
    )
    history = forde.fit(
        ensemble,
        forde.method(method, weight_decay=weight_decay),
        loaded,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        seed=seed,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        precision=precision,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
        memory=memory,  # type: ignore[arg-type]
        augmentation=forde.Augmentation() if augment else None,
        writers=[TensorBoard(run / "tensorboard")] if tensorboard else [],
        run=run,
        resume=resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0,  # torchrun started us again
        checkpoint_every=checkpoint_every,
        checkpoint_minutes=checkpoint_minutes,
        keep=keep,
        non_finite=non_finite,  # type: ignore[arg-type]
        mesh=parse_shape(mesh) if mesh is not None else "auto" if processes() > 1 else None,
    )
    if int(os.environ.get("RANK", "0")):  # the first process speaks for all
        return
    last = history.records[-1]
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{method}, {members} × {model} on {data}: loss {last['loss']:.4f} after {len(history)} epochs")
    console.print(f"ensemble in {run / 'ensemble'}, records in {run / 'metrics.jsonl'}")


def network_factory(model: str, hidden: str, data: Any) -> Callable[[], Any]:
    """What builds a member for this data.

    >>> import forde.data
    >>> network_factory("mlp", "32", forde.data.load("digits"))().head
    Linear(in_features=32, out_features=10, bias=True)
    """
    from forde import models

    description = data.description
    outputs = description.n_classes or 2  # a quantity: its mean and its variance
    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
    if model == "mlp":
        try:
            widths = [int(width) for width in hidden.split(",") if width]
        except ValueError:
            raise FordeError(f"--hidden is '{hidden}', but widths as in 128,128 were expected.") from None
        return lambda: models.MLP(prod(description.shape), widths, outputs)
    if len(description.shape) != 3:
        raise FordeError(f"{model} needs images, but '{description.name}' is a table; use --model mlp.")
    return lambda: getattr(models, model)(outputs, channels=description.shape[2])
