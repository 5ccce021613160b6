"""Options of commands that train: `forde train` and `forde tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forde.commands import completion
from forde.commands.asked import refuse_model_of_file
from forde.commands.settings_file import read_file, read_overrides
from forde.models.building import MODELS
from forde.training.usual import RATES

SGD, ADAM = RATES["sgd"], RATES["adam"]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.yaml",
        callback=read_file,
        is_eager=True,
        help="Settings in YAML, in the place of flags (forde config --show). A flag counts more.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=read_overrides,
        is_eager=True,
        help="A setting by its name in the file, as in training.epochs=30 or method.alpha=0.2; it counts more than the "
        "file, and less than a flag.",
    ),
]
Target = Annotated[
    str | None, typer.Option(help="Target column of a table, by name or by number from 0; the last if left out.")
]
Task = Annotated[
    str | None, typer.Option(help="classification or regression, for a table whose target could be either.")
]
Drop = Annotated[
    str | None, typer.Option(help="Columns of a table that are no features, with commas between, as in id,name.")
]
Test = Annotated[
    float | None,
    typer.Option(
        "--test",
        help="Share of the data to hold out for forde evaluate, as in 0.2; for data without a test split of its own.",
    ),
]
Network = Annotated[
    str,
    typer.Option(
        "--model",
        callback=refuse_model_of_file,
        help=f"Network: {', '.join(MODELS)}, or package.module:function that builds one of your own.",
        autocompletion=completion.models,
    ),
]
Hidden = Annotated[str, typer.Option(help="Widths of the perceptron's hidden layers.")]
Members = Annotated[int, typer.Option(min=1, help="Networks in the ensemble.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the data.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples per step.")]
Rate = Annotated[
    float | None,
    typer.Option(min=0, help=f"Learning rate; if left out {SGD} of SGD and {ADAM} of Adam."),
]
Optimizer = Annotated[
    str | None,
    typer.Option(help="sgd (Nesterov momentum 0.9) or adam; if left out sgd for classes and adam for a quantity."),
]
WeightDecay = Annotated[float, typer.Option(help="Of the prior on the weights.")]
Augment = Annotated[bool, typer.Option("--augment", help="Random crops and flips of images.")]
