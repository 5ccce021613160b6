"""`forde bench step`."""

from __future__ import annotations

from typing import Annotated

import typer

from forde.benchmarks.models import MODELS
from forde.benchmarks.step import ENGINES, MEMORIES, default_engines, measure, steps
from forde.commands.bench.options import names, shares, whole_numbers
from forde.commands.bench.output import Device, Precisions, Repeats, Size, report
from forde.commands.options import JsonFile


def step(
    methods: Annotated[str, typer.Option(help="Methods, commas between.")] = "deep-ensemble,forde-identity,forde-pca",
    engines: Annotated[
        str | None, typer.Option(help=f"Of {', '.join(ENGINES)}, commas between; by default two that suit the device.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}, commas between.")] = "mlp",
    members: Annotated[str, typer.Option(help="Ensemble sizes, commas between.")] = "10",
    batch: Annotated[str, typer.Option(help="Batch sizes, commas between.")] = "128",
    precision: Precisions = "float32",
    memory: Annotated[
        str, typer.Option(help=f"Of {', '.join(MEMORIES)}, commas between; for methods that repel.")
    ] = "speed",
    every: Annotated[str, typer.Option(help="Also repel in every k-th step only; commas between.")] = "",
    fraction: Annotated[str, typer.Option(help="Also repel on this share of the batch; commas between.")] = "",
    rank: Annotated[
        str, typer.Option(help="Also compare members along so many principal directions only; commas between.")
    ] = "",
    device: Device = "cpu",
    size: Size = None,
    repeats: Repeats = 30,
    json_file: JsonFile = None,
) -> None:
    """Milliseconds of a training step, against the deep ensemble of the same engine and against the naive loop.

    What these two need is measured too, in the same run. With repulsion in every k-th step, a time is the mean over
    whole cycles of k steps.

    Example: forde bench step --model resnet18 --precision bf16 --device cuda --methods forde-pca --memory speed,low
    """
    wanted = steps(
        names(methods),
        default_engines(device) if engines is None else names(engines),
        models=names(model),
        members=whole_numbers("--members", members),
        batches=whole_numbers("--batch", batch),
        precisions=names(precision),
        memories=names(memory),
        every=whole_numbers("--every", every),
        fractions=shares("--fraction", fraction),
        ranks=whole_numbers("--rank", rank),
        device=device,
        size=size,
    )
    report("step", measure(wanted, repeats), len(wanted), json_file)
