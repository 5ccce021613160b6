"""`forde bench`: how fast things are on this machine, one module for each command."""

from __future__ import annotations

import typer

from forde.commands.bench.corruptions import corruptions
from forde.commands.bench.kernel import kernel
from forde.commands.bench.predict import predict
from forde.commands.bench.scale import scale
from forde.commands.bench.step import step
from forde.commands.bench.tables import tables

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
for command in (step, predict, scale, kernel, corruptions, tables):
    app.command()(command)
