"""`forde bench scale`."""

from __future__ import annotations

from typing import Annotated

import typer

from forde.benchmarks.models import MODELS
from forde.benchmarks.processes import measure as measure_processes
from forde.benchmarks.scale import measure, sizes_around
from forde.benchmarks.step import ENGINES, MEMORIES, Step
from forde.commands.bench.options import whole_numbers
from forde.commands.bench.output import Device, Repeats, Size, report
from forde.commands.options import JsonFile
from forde.distributed.mesh import parse_shape
from forde.errors import FordeError


def scale(
    method: Annotated[str, typer.Option(help="A method.")] = "forde-pca",
    engine: Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")] = "eager",
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "mlp",
    members: Annotated[int, typer.Option(min=1, help="Ensemble size at the centre.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Batch size at the centre.")] = 128,
    size: Size = None,
    over_members: Annotated[str, typer.Option(help="Ensemble sizes, commas between; '' for none.")] = "1,2,5,10,20",
    over_batch: Annotated[str, typer.Option(help="Batch sizes, commas between; '' for none.")] = "32,64,128,256,512",
    over_size: Annotated[
        str | None, typer.Option(help="Sizes, commas between; '' for none; by default half, once and twice the centre.")
    ] = None,
    over_processes: Annotated[
        str,
        typer.Option(help="Numbers of local processes, commas between: a mesh makes the centre's step, nothing else."),
    ] = "",
    mesh: Annotated[
        str, typer.Option(help="Shards of members x shards of the batch, as in 2x1, for --over-processes; or auto.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="float32 (strict), tf32 or bf16.")] = "float32",
    memory: Annotated[str, typer.Option(help=f"One of {', '.join(MEMORIES)}.")] = "speed",
    device: Device = "cpu",
    repeats: Repeats = 20,
    json_file: JsonFile = None,
) -> None:
    """How a step's cost grows with members, batch and input size, one at a time around a centre.

    × linear is the time divided by what it would be if it grew in proportion to members, batch or input values.

    With --over-processes, that many local processes are started instead, and make the step of the centre together. For
    each step: messages, kB that a process sends, ms that it waits in messages; and by how much weights have moved
    differently than in one process after five steps in float32.

    Example: forde bench scale --model resnet18 --precision bf16 --device cuda --over-size 32,64
    """
    centre = Step(method, engine, model, members, batch, precision, memory, device, size)
    centre.check()
    if counts := whole_numbers("--over-processes", over_processes):
        shape = None if mesh == "auto" else parse_shape(mesh)
        report("scale", measure_processes(centre, counts, shape, repeats), len({1, *counts}), json_file)
        return
    if mesh != "auto":
        raise FordeError("--mesh is for --over-processes; say over how many.")
    given = {
        "members": whole_numbers("--over-members", over_members),
        "batch": whole_numbers("--over-batch", over_batch),
        "size": sizes_around(centre) if over_size is None else whole_numbers("--over-size", over_size),
    }
    axes = {axis: values for axis, values in given.items() if values}
    report("scale", measure(centre, axes, repeats), sum(len(values) for values in axes.values()), json_file)
