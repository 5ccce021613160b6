"""`forde bench corruptions`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from forde.benchmarks.corruptions import measure, whole_set_seconds
from forde.benchmarks.machine import machine
from forde.commands.options import STDOUT, JsonFile
from forde.commands.reporting import table_console, write_report


def corruptions(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of which the fastest counts.")] = 3,
    workers: Annotated[
        int, typer.Option(min=0, help="Also make the whole set of 950,000 images with this many workers.")
    ] = 0,
    device: Annotated[str, typer.Option(help="Where the whole set is made.")] = "cpu",
) -> None:
    """Images per second of each corruption on one core, at 32×32, random draws included.

    Example: forde bench corruptions --json corruptions.json
    """
    console = table_console(json_file)
    with console.status("measuring"):
        speeds, seconds = measure(repeats=repeats)
    table = Table(caption=f"19 × 5 × 10,000 images at these speeds: {seconds:.1f} s on one core")
    table.add_column("name")
    table.add_column("images_per_second", justify="right")
    for speed in speeds:
        table.add_row(speed.name, f"{speed.images_per_second:,.0f}")
    console.print(table)
    rows = [{"name": s.name, "images_per_second": s.images_per_second} for s in speeds]
    numbers: dict[str, object] = {"machine": machine(), "rows": rows, "whole_set_seconds_one_core": seconds}
    if workers:
        taken = whole_set_seconds(workers=workers, device=device)
        console.print(f"whole set with {workers} workers on {device}: {taken:.1f} s")
        numbers["whole_set"] = {"workers": workers, "device": device, "seconds": taken}
    write_report("bench corruptions", numbers, json_file)
    if json_file not in (None, STDOUT):
        console.print(f"wrote {json_file}", soft_wrap=True)
