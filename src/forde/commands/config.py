"""`forde config`: the settings of a training, each with where it comes from, in the form that `--config` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from forde.commands import completion
from forde.commands.settings_file import (
    META,
    OPEN,
    SECTIONS,
    flattened,
    given,
    keys_of,
    read_file,
    read_overrides,
    take,
)
from forde.errors import FordeError, unknown_name

COMMANDS = ("train", "tune")


def config(
    ctx: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run, to begin with its settings.", autocompletion=completion.runs),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print all settings, each with where it comes from.")] = False,
    of: Annotated[str, typer.Option("--of", help="Of which command: train or tune.")] = "train",
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.yaml", help="A file of settings to look at.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in training.epochs=30.")
    ] = None,
) -> None:
    """Check a file of settings; with --show print what a command would be called with, and where each value is from.

    What is printed is such a file itself: forde config runs/a --show > run.yaml

    Example: forde config --set method.name=forde --set method.alpha=.2 --show
    """
    asked = _context(ctx, of)
    if run is not None:
        _take_run(asked, run)
    read_file(asked, config_file)
    read_overrides(asked, overrides)
    lines = [*_lines(asked)]
    if show:
        for line in lines:
            typer.echo(line)
        return
    if run is None and config_file is None and not overrides:
        raise FordeError(
            "there is nothing to check; name a run, or give --config FILE.yaml or --set KEY=VALUE; --show alone prints "
            "the defaults."
        )
    count = len(given(asked).origins)
    where = config_file or run or "--set"
    typer.echo(f"{where}: {count} settings of forde {of}, all known; forde config --show prints them with the others")


def _context(own: typer.Context, of: str) -> Any:
    """Of the command whose settings these are, with nothing given yet."""
    root: Any = own.find_root().command
    if of not in COMMANDS:
        raise unknown_name("command with settings", of, COMMANDS)
    ctx = root.commands[of].make_context(f"forde {of}", [], resilient_parsing=True)
    ctx.resilient_parsing = False
    ctx.meta.pop(f"{META}.{ctx.info_name}", None)
    return ctx


def _take_run(ctx: Any, run: Path) -> None:
    from forde.training.run_folder import CONFIG, read_settings
    from forde.training.trained import SETTINGS

    if not (run / CONFIG).is_file():
        raise FordeError(f"'{run}' holds no run of forde train; name the folder that --out was.")
    note = (read_settings(run / CONFIG).get("how") or {}).get("note")
    settings = note.get(SETTINGS) if isinstance(note, dict) else None
    if not isinstance(settings, Mapping):
        raise FordeError(f"'{run}' does not say what forde train was called with; it is of another version or program.")
    known = keys_of(ctx.command.params)
    for key, value in flattened(settings, str(run)):
        if key != "execution.out" and (key in known or key.startswith(f"{OPEN}.")):
            take(ctx, key, value, str(run))


def _lines(ctx: Any) -> Iterator[str]:
    """YAML, section by section, with remarks on where values come from."""
    said, keys = given(ctx), keys_of(ctx.command.params)
    params = {param.name: param for param in ctx.command.params}
    for section in SECTIONS:
        own = [(key.split(".")[1], name) for key, name in keys.items() if key.startswith(f"{section}.")]
        if own:
            yield f"{section}:"
        for key, name in own:
            value, origin = _value(ctx, params[name]), said.origins.get(name)
            if value is None and origin is None:
                yield f"  # {key}: {'must be given' if params[name].required else 'left out'}"
            else:
                yield f"  {key}: {_yaml(value)}  # {origin or 'default'}"
        if section == OPEN:
            _check_options(said.own, _value(ctx, params["method"]) if "method" in params else None)
            for key, value in said.own.items():
                yield f"  {key}: {_yaml(value)}  # {said.origins[f'{OPEN}.{key}']}"


def _value(ctx: Any, param: Any) -> Any:
    """As the command would get it: its type is checked."""
    at = (ctx.default_map or {}).get(param.name, param.get_default(ctx))
    value = None if at is None else param.process_value(ctx, at)
    return str(value) if isinstance(value, Path) else value


def _check_options(own: Mapping[str, Any], name: str | None) -> None:
    from forde.commands.preparing import as_option
    from forde.methods import method

    if own and name is not None:
        method(name, **{key: as_option(value) for key, value in own.items()})


def _yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
