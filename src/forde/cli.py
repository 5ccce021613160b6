"""The command line: one console script with sub-commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import forde
from forde.commands import bench, data
from forde.commands.compare import compare
from forde.commands.config import config
from forde.commands.corrupt import corrupt
from forde.commands.evaluate import evaluate
from forde.commands.features import features
from forde.commands.options import JsonFile
from forde.commands.predict import predict
from forde.commands.report import report
from forde.commands.reporting import table_console, write_report
from forde.commands.reproduce import reproduce
from forde.commands.train import train
from forde.commands.tune import tune

app = typer.Typer(
    help="Repulsive deep ensembles: train, evaluate, predict, compare, report. Begin with `forde train --help`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


for command in (train, evaluate, predict, compare, report, tune, config, corrupt, features, reproduce):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forde {forde.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def methods(json_file: JsonFile = None) -> None:
    """List the methods that can be trained, one line each.

    Example: forde methods --json -
    """
    known = forde.methods()
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, line in known.items():
        table.add_row(Text(name, style="bold"), line)
    table_console(json_file).print(table)
    write_report("methods", {"methods": known}, json_file)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figures; those of before are replaced.")] = Path(
        "forde-demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    members: Annotated[int, typer.Option(min=1, help="Members of each ensemble.")] = 10,
    json_file: JsonFile = None,
) -> None:
    """Compare a deep ensemble with FoRDE on real digits, and draw the paper's figures 2 and 3.

    Example: forde demo --out figures
    """
    from forde.demo import run_demo

    found = run_demo(out, seeds=seeds, members=members, console=table_console(json_file))
    write_report("demo", {"seeds": seeds, "members": members, **found}, json_file)
