"""`forde data`: which data sets there are, where they lie, getting and checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from forde import data
from forde.commands import completion
from forde.commands.console import plain_console
from forde.commands.options import DataDir
from forde.data.catalogue import BUILT_IN
from forde.data.locating import from_package, places
from forde.data.publications import PUBLICATIONS, File
from forde.errors import FordeError, unknown_name

app = typer.Typer(help="List, describe, download and check data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A name that `forde data list` shows.", autocompletion=completion.data_sets)]


def _names() -> list[str]:
    return [*data.CATALOGUE, *(name for name in PUBLICATIONS if name not in data.CATALOGUE)]


def _place(name: str, folder: Path, *, itself: bool = False) -> str:
    if name in BUILT_IN:
        return "comes with forde"
    found = places(name, folder, itself=itself)
    return str(found[0] if found else from_package(name) or "not here")


@app.command("list")
def list_sets(data_dir: DataDir = None) -> None:
    """List the data sets known by name and where they are.

    Example: forde data list --data-dir ~/data
    """
    folder = data.data_folder(data_dir)
    table = Table("name", "classes", "shape", "samples", box=None, pad_edge=False, header_style="bold")
    table.add_column("where", overflow="fold")  # a path that is cut cannot be used
    for name in _names():
        known = data.CATALOGUE.get(name)
        table.add_row(
            name,
            str(known.n_classes) if known else "",
            " x ".join(map(str, known.shape)) if known else "",
            ", ".join(f"{split} {size:,}" for split, size in known.splits.items())
            if known
            else "19 types x 5 severities",
            _place(name, folder),
        )
    plain_console().print(table)


@app.command()
def info(name: Name, data_dir: DataDir = None) -> None:
    """Describe a data set: sizes, channel statistics, classes, licence, files and checksums.

    Example: forde data info cifar10
    """
    if name not in _names():
        raise unknown_name("data set", name, _names())
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")  # a path that is cut cannot be used
    known = data.CATALOGUE.get(name)
    if known:
        table.add_row("shape", " x ".join(map(str, known.shape)))
        for split, size in known.splits.items():
            table.add_row(split, f"{size:,} samples")
        if known.mean:
            table.add_row("mean", ", ".join(f"{value:.4f}" for value in known.mean))
            table.add_row("std", ", ".join(f"{value:.4f}" for value in known.std))
        names = f": {', '.join(known.classes)}" if known.classes else ""
        table.add_row("classes", f"{known.n_classes}{names}" if known.n_classes else "none (regression)")
        table.add_row("source", known.source)
    table.add_row("where", _place(name, data.data_folder(data_dir), itself=True))
    publication = PUBLICATIONS.get(name.removesuffix("-imagenet"))
    if publication:
        for file in publication.files:
            megabytes = f", {file.size / 1e6:,.0f} MB" if file.size else ""
            table.add_row("file", f"{file.url}{megabytes}, MD5 {file.md5 or 'unknown'}")
        table.add_row("checksums", publication.checksums)
    console = plain_console()
    console.print(Text(name, style="bold"))
    console.print(table)


@app.command()
def download(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set from its publisher, check it and unpack it; an interrupted download goes on.

    Example: forde data download cifar10 --data-dir ~/data
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=plain_console(stderr=True)) as bars:

        def show(file: File, received: int, total: int | None) -> None:
            if file.name not in tasks:
                tasks[file.name] = bars.add_task(file.name)
            bars.update(tasks[file.name], completed=received, total=total)

        folder = data.download(name, data_dir, progress=show)
    typer.echo(f"{name} is in {folder}")


@app.command()
def check(name: Name, data_dir: DataDir = None) -> None:
    """Read a whole data set and compare it with its description.

    Example: forde data check cifar10 --data-dir ~/data
    """
    table = Table(
        "split",
        "samples",
        "per class",
        "copies",
        "copies with another label",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    reports = data.check(name, data_dir)
    for report in reports:
        table.add_row(
            report.split,
            f"{report.size:,}",
            f"{report.smallest_class:,} to {report.largest_class:,}",
            f"{report.repeated:,}",
            f"{report.relabelled:,}",
        )
    plain_console().print(table)
    problems = [problem for report in reports for problem in report.problems]
    if problems:
        raise FordeError(f"{name} is not as published: {' '.join(problems)}")
    typer.echo(f"{name} is as described.")
