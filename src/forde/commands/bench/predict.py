"""`forde bench predict`."""

from __future__ import annotations

from typing import Annotated

import typer

from forde.benchmarks.models import MODELS
from forde.benchmarks.predict import measure, predictions
from forde.commands.bench.options import names, whole_numbers
from forde.commands.bench.output import Device, Precisions, Repeats, Size, report
from forde.commands.options import JsonFile


def predict(
    model: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}, commas between.")] = "mlp",
    members: Annotated[str, typer.Option(help="Ensemble sizes, commas between.")] = "10",
    batch: Annotated[str, typer.Option(help="Batch sizes, commas between.")] = "512",
    images: Annotated[int, typer.Option(min=1, help="Images to predict.")] = 10_000,
    precision: Precisions = "float32",
    device: Device = "cpu",
    size: Size = None,
    repeats: Repeats = 5,
    json_file: JsonFile = None,
) -> None:
    """Images × members per second of Ensemble.predict, from floats on the device to probabilities on the CPU.

    Example: forde bench predict --model resnet18 --precision float32,tf32,bf16 --device cuda
    """
    wanted = predictions(
        names(model),
        names(precision),
        members=whole_numbers("--members", members),
        batches=whole_numbers("--batch", batch),
        images=images,
        device=device,
        size=size,
    )
    report("predict", measure(wanted, repeats), len(wanted), json_file)
