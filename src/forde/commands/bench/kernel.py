"""`forde bench kernel`."""

from __future__ import annotations

from typing import Annotated

import typer

from forde.benchmarks.kernel import measure, metrics
from forde.benchmarks.timing import checked_device
from forde.commands.bench.options import whole_numbers
from forde.commands.bench.output import Device, Repeats, report
from forde.commands.options import JsonFile


def kernel(
    dimensions: Annotated[
        str, typer.Option(help="Values in one input, commas between: 3072 is 32×32×3, 12288 is 64×64×3.")
    ] = "3072,12288",
    members: Annotated[int, typer.Option(min=2, help="Ensemble size.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 32,
    rank: Annotated[int, typer.Option(min=1, help="Directions that the low-rank metric keeps.")] = 256,
    device: Device = "cpu",
    repeats: Repeats = 5,
    json_file: JsonFile = None,
) -> None:
    """Milliseconds of the repulsion alone, without any network, for each metric of the kernel.

    Example: forde bench kernel --dimensions 3072 --members 20 --device cuda
    """
    sizes = whole_numbers("--dimensions", dimensions)
    rows = measure(sizes, members=members, batch=batch, rank=rank, device=checked_device(device), repeats=repeats)
    report("kernel", rows, len(sizes) * len(metrics(rank)), json_file)
