"""`forde train`: train a library network on a named data set or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from forde.data.description import Images, Table
from forde.errors import FordeError
from forde.methods import Method
from forde.training.constant import constant_loss, far_above
from forde.training.recipe import MODELS

RATE, QUANTITY_RATE = 0.1, 0.003
"""Learning rates of SGD and of Adam."""
MOST_SEED = 2**63 - 1
"""Generators take up to 2^64 − 1, and members count on from the seed."""


def train(
    data: Annotated[str, typer.Option(help="A data set by name (`forde data list`), or a file or folder.")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")],
    run: Annotated[
        Path,
        typer.Option("--run", "--run-folder", help="Folder for settings, metrics, log, checkpoints and the ensemble."),
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Target column of a table, by name or by number from 0; the last if left out."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classification or regression, for a table whose target could be either.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"Network: {', '.join(MODELS)}.")] = "mlp",
    hidden: Annotated[str, typer.Option(help="Widths of the perceptron's hidden layers.")] = "128,128",
    method: Annotated[str, typer.Option(help="A method that `forde methods` shows.")] = "forde-pca",
    members: Annotated[int, typer.Option(min=1, help="Networks in the ensemble.")] = 5,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder, if anything.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 128,
    lr: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=f"Learning rate; if left out {RATE} for classes (SGD with Nesterov momentum 0.9) and {QUANTITY_RATE} "
            "for a quantity (Adam).",
        ),
    ] = None,
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

    Tables are standardised with the statistics of the training rows; forde.load_run(RUN).predict(rows) undoes it.

    A loss far above that of a constant prediction is said on stderr; the exit code stays 0, as all files are there.

    On several processes: torchrun --nproc-per-node=4 -m forde train ... --run-folder runs/a --mesh 2x2
    (torchrun takes --run for its own --run-path)
    """
    import torch

    import forde
    from forde.distributed.mesh import parse_shape, processes
    from forde.training.recipe import Recipe
    from forde.training.trained import RECIPE
    from forde.training.writers import TensorBoard

    if not 0 <= seed <= MOST_SEED:
        raise FordeError(f"--seed is {seed}, but a whole number from 0 to {MOST_SEED} was expected; give another one.")
    loaded = forde.data.load(data, "train", data_dir, target=target, task=task)  # type: ignore[arg-type]
    if augment and not isinstance(loaded, Images):
        raise FordeError(f"--augment needs images, but '{data}' is a table; leave it out.")
    recipe = Recipe.of(loaded, model, _widths(hidden))
    prepared = recipe.in_standard_units(loaded)
    first = int(os.environ.get("RANK", "0")) == 0  # of several processes: it speaks for all
    if first:
        typer.echo(_describe(data, loaded))
    ensemble = forde.Ensemble(recipe.make_network, members, seed=seed, likelihood=recipe.likelihood)
    rate = lr if lr is not None else RATE if recipe.n_classes else QUANTITY_RATE
    chosen = forde.method(method, weight_decay=weight_decay)
    history = forde.fit(
        ensemble,
        chosen,
        prepared,
        epochs=epochs,
        batch_size=batch_size,
        **({"lr": rate} if recipe.n_classes else _adam(rate, epochs, chosen)),
        seed=seed,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        precision=precision,  # type: ignore[arg-type]
        engine=engine,  # type: ignore[arg-type]
        run=run,
        resume=resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0,  # torchrun started us again
        batches=forde.Batching(augmentation=forde.Augmentation() if augment else None),
        execution=forde.Execution(
            memory=memory,  # type: ignore[arg-type]
            mesh=parse_shape(mesh) if mesh is not None else "auto" if processes() > 1 else None,
            non_finite=non_finite,  # type: ignore[arg-type]
        ),
        reporting=forde.Reporting(writers=[TensorBoard(run / "tensorboard")] if tensorboard else []),
        checkpoint=forde.Checkpointing(checkpoint_every, checkpoint_minutes, keep, about={RECIPE: recipe.to_json()}),
    )
    if first:
        typer.echo(f"{method}, {members} × {model} on {data}: {_outcome(history.records, prepared)}")
        typer.echo(f"ensemble in {run / 'ensemble'}, records in {run / 'metrics.jsonl'}")


def _adam(rate: float, epochs: int, method: Method) -> dict[str, Any]:
    """For a quantity: the loss of a mean and a variance has no curvature that one rate of SGD would suit."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR

    from forde.training.schedule import method_factor

    return {
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=rate),
        "scheduler": lambda optimizer: LambdaLR(optimizer, method_factor(method, epochs, rate)),
    }


def _widths(hidden: str) -> list[int]:
    try:
        return [int(width) for width in hidden.split(",") if width]
    except ValueError:
        raise FordeError(f"--hidden is '{hidden}', but widths as in 128,128 were expected.") from None


def _describe(name: str, data: Images | Table) -> str:
    """What will be learned from what, before the time is spent."""
    classes = data.description.n_classes
    if isinstance(data, Images):
        return f"{name}: {len(data):,} images of {classes} classes"
    kind = f"a class, one of {classes}" if classes else "a quantity, standardised"
    return (
        f"{name}: {len(data):,} rows of {len(data.feature_names):,} features, standardised; "
        f"the target '{data.target_name}' is {kind}"
    )


def _outcome(records: Sequence[Mapping[str, Any]], data: Images | Table) -> str:
    """The last loss beside that of a constant prediction; a warning where it is far above."""
    classes = data.description.n_classes
    constant = constant_loss(data.labels if isinstance(data, Images) else data.y, classes)
    loss = float(records[-1]["loss"])
    of = "class frequencies" if classes else "mean and variance of the target"
    if far_above(loss, constant):
        typer.echo(
            f"Warning: the loss {loss:.4f} is far above {constant:.4f}, which the {of} alone would give; "
            "lower --lr, or train for more --epochs.",
            err=True,
        )
    unit = "nats per sample" if classes else "nats per row for the standardised target"
    return f"loss {loss:.4f} after {len(records)} epochs ({unit}; the {of} alone would give {constant:.4f})"
