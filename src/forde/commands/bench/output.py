"""What all of `forde bench` does with its rows: the file is kept up to date while they come, the table comes last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from forde.benchmarks.machine import machine
from forde.benchmarks.rows import Row
from forde.commands.options import STDOUT
from forde.commands.reporting import table_console, write_report
from forde.durable import make_folder
from forde.errors import FordeError
from forde.progress import Pace, duration

Repeats = Annotated[int, typer.Option(min=1, help="Timed calls of each row; the median counts.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Precisions = Annotated[
    str, typer.Option("--precision", help="float32 (strict), tf32, bf16; several with commas between.")
]
Size = Annotated[
    int | None, typer.Option(min=1, help="Side of the images (of a perceptron: its inputs), if not the usual one.")
]

NUMBERS = {
    "ms": ("ms", ",.2f"),
    "ratio_to_deep_ensemble": ("× deep ensemble", ".2f"),
    "speedup_over_naive": ("speed-up over naive", ".2f"),
    "member_images_per_second": ("member images/s", ",.0f"),
    "ms_per_member": ("ms/member", ",.3f"),
    "ms_per_sample": ("ms/sample", ",.4f"),
    "ratio_to_linear": ("× linear", ".2f"),
    "ratio_to_one_process": ("× one process", ".2f"),
    "messages": ("messages", ",.0f"),
    "sent_kb": ("kB sent", ",.1f"),
    "waited_ms": ("ms waited", ",.2f"),
    "movement_error": ("movement differs", ".1e"),
    "ratio_to_identity": ("× identity", ".2f"),
    "peak_memory_gib": ("peak GiB", ".2f"),
    "reserved_gib": ("reserved GiB", ".2f"),
    "first_step_s": ("first step s", ".2f"),
    "first_call_s": ("first call s", ".2f"),
}
"""Heading and format of measured columns; all others are settings."""


def report(command: str, snapshots: Iterator[list[Row]], total: int, json_file: Path | None) -> None:
    """Follow a measurement of `forde bench COMMAND`, of which `snapshots` yields all rows so far, to its end.

    Whatever ends it (an error, Ctrl-C), rows that were measured are in the file and in the table.
    """
    if total == 0:
        raise FordeError("there is nothing to measure; give each option at least one value.")
    name, console = f"bench {command}", table_console(json_file)
    file = None if json_file == STDOUT else json_file
    if file is not None:
        make_folder(file.parent)
        file.open("a").close()  # a file that cannot be written is better known before than after
    rows: list[Row] = []

    pace = Pace(total)
    try:
        with console.status(f"measuring 1 of {total}") as status:
            for rows in snapshots:
                left = pace.left(len(rows))
                more = f", {duration(left)} left" if left else ""
                status.update(f"measuring {min(len(rows) + 1, total)} of {total}{more}")
                if not console.is_terminal:
                    typer.echo(f"{len(rows)}/{total} measured{more}", err=True)
                if file is not None:
                    write_report(name, {"machine": machine(), "rows": rows}, file)
    finally:
        if file is not None and rows:
            console.print(f"wrote {file}", soft_wrap=True)
        elif file is not None and not file.stat().st_size:
            file.unlink()
        if rows:
            console.print(as_table(rows))
            for line, style in below(rows):
                console.print(line, style=style, highlight=False, soft_wrap=True)
            if json_file == STDOUT:
                write_report(name, {"machine": machine(), "rows": rows}, json_file)
    if all(row["ms"] is None for row in rows):
        raise FordeError("nothing could be measured; the reasons stand under the table.")


def as_table(rows: Sequence[Row]) -> Table:
    """Settings that all rows share are the title; columns without any number are left out."""
    shared = [key for key in _settings(rows) if key not in _varying(rows)]
    table = Table(title=", ".join(f"{key} {rows[0][key]}" for key in shared))
    for key in _varying(rows):
        table.add_column(key)
    measured = [key for key in rows[0] if key in NUMBERS and (key == "ms" or any(row[key] is not None for row in rows))]
    for key in measured:
        table.add_column(NUMBERS[key][0], justify="right")
    for row in rows:
        numbers = ("–" if row[key] is None else format(row[key], NUMBERS[key][1]) for key in measured)
        table.add_row(*(str(row[key]) for key in _varying(rows)), *numbers)
    return table


def below(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Lines under the table and their style: why rows failed, and engines that ran as another than their name says."""
    concerned: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        note = str(row.get("note") or "")
        line = (str(row["error"]), "red") if row["error"] else (note, "dim")
        if row["error"] or (note and not note.startswith((f"engine: {row['engine']}", "engine: compiling"))):
            concerned.setdefault(line, []).append(", ".join(str(row[key]) for key in _varying(rows)))
    for (text, style), which in concerned.items():
        yield f"{'; '.join(which)}: {text}", style


def _settings(rows: Sequence[Row]) -> list[str]:
    return [key for key in rows[0] if key not in NUMBERS and key not in ("note", "error")]


def _varying(rows: Sequence[Row]) -> list[str]:
    """Settings in which rows differ, and the first one in any case."""
    first, *others = _settings(rows)
    return [first, *(key for key in others if any(row[key] != rows[0][key] for row in rows))]
