"""Commands in this process, and options that make a run small."""

from __future__ import annotations

from typer.testing import CliRunner

from forde.cli import app

SMALL = ("--members", "3", "--epochs", "2", "--hidden", "16", "--device", "cpu", "--engine", "eager")


def forde(*arguments: object) -> str:
    """What a command that must succeed prints."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return str(result.output)
