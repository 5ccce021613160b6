"""`forde data`: which data sets there are, where they lie, getting and checking them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from forde import data
from forde.commands import completion
from forde.commands.console import plain_console
from forde.commands.options import DataDir, JsonFile
from forde.commands.reporting import sayer, table_console, write_report
from forde.data.catalogue import BUILT_IN
from forde.data.locating import from_package, places
from forde.data.publications import PUBLICATIONS, File
from forde.errors import FordeError, unknown_name

app = typer.Typer(help="List, describe, download and check data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A name that `forde data list` shows.", autocompletion=completion.published)]


def _names() -> list[str]:
    return [*data.CATALOGUE, *(name for name in PUBLICATIONS if name not in data.CATALOGUE)]


def _place(name: str, folder: Path, *, itself: bool = False) -> str:
    if name in BUILT_IN:
        return "comes with forde"
    found = places(name, folder, itself=itself)
    return str(found[0] if found else from_package(name) or "not here")


def _sizes(known: data.Description | None) -> dict[str, Any]:
    """For JSON; of a set of corrupted copies nothing is described."""
    return {"classes": known.n_classes, "shape": known.shape, "splits": known.splits} if known else {}


@app.command("list")
def list_sets(data_dir: DataDir = None, json_file: JsonFile = None) -> None:
    """List the data sets known by name and where they are.

    Example: forde data list --data-dir ~/data
    """
    folder = data.data_folder(data_dir)
    table = Table("name", "classes", "shape", "samples", box=None, pad_edge=False, header_style="bold")
    table.add_column("where", overflow="fold")  # a path that is cut cannot be used
    found = {}
    for name in _names():
        known, place = data.CATALOGUE.get(name), _place(name, folder)
        table.add_row(
            name,
            str(known.n_classes) if known else "",
            " x ".join(map(str, known.shape)) if known else "",
            ", ".join(f"{split} {size:,}" for split, size in known.splits.items())
            if known
            else "19 types x 5 severities",
            place,
        )
        found[name] = {**_sizes(known), "where": place}
    table_console(json_file).print(table)
    write_report("data list", {"data_sets": found}, json_file)


@app.command()
def info(name: Name, data_dir: DataDir = None, json_file: JsonFile = None) -> None:
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
    place = _place(name, data.data_folder(data_dir), itself=True)
    table.add_row("where", place)
    publication = PUBLICATIONS.get(name.removesuffix("-imagenet"))
    files = publication.files if publication else ()
    for file in files:
        megabytes = f", {file.size / 1e6:,.0f} MB" if file.size else ""
        table.add_row("file", f"{file.url}{megabytes}, MD5 {file.md5 or 'unknown'}")
    if publication:
        table.add_row("checksums", publication.checksums)
    console = table_console(json_file)
    console.print(Text(name, style="bold"))
    console.print(table)
    more = {"mean": known.mean, "std": known.std, "class_names": known.classes, "source": known.source} if known else {}
    listed = [{"url": file.url, "bytes": file.size, "md5": file.md5} for file in files]
    write_report("data info", {"name": name, **_sizes(known), **more, "where": place, "files": listed}, json_file)


@app.command()
def download(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set from its publisher, check it and unpack it; an interrupted download goes on.

    Example: forde data download cifar10 --data-dir ~/data
    """
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    bars = Progress(*columns, console=plain_console(stderr=True))

    def show(file: File, received: int, total: int | None) -> None:
        if not tasks:
            bars.start()  # not before, so that a mistake is a sentence alone
        if file.name not in tasks:
            tasks[file.name] = bars.add_task(file.name)
        bars.update(tasks[file.name], completed=received, total=total)

    try:
        folder = data.download(name, data_dir, progress=show)
    finally:
        if tasks:
            bars.stop()
    typer.echo(f"{name} is in {folder}")


@app.command()
def check(name: Name, data_dir: DataDir = None, json_file: JsonFile = None) -> None:
    """Read a whole data set and compare it with its description.

    Example: forde data check digits
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
    table_console(json_file).print(table)
    write_report("data check", {"name": name, "splits": [asdict(report) for report in reports]}, json_file)
    problems = [problem for report in reports for problem in report.problems]
    if problems:
        raise FordeError(f"{name} is not as published: {' '.join(problems)}")
    sayer(json_file)(f"{name} is as described.")
