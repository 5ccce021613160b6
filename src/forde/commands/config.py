"""`forde config`: the settings of a training, each with where it comes from, in the form that `--config` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from forde.commands import completion
from forde.commands.options import JsonFile
from forde.commands.reporting import sayer, write_report
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
UNSAID = ("must be given", "left out")
"""What it means that a setting has no value."""


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
    json_file: JsonFile = None,
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
    settings, say = [*_settings(asked)], sayer(json_file)
    write_report("config", {"of": of, "settings": _by_section(settings)}, json_file)
    if show:
        for line in _lines(settings):
            say(line)
        return
    if run is None and config_file is None and not overrides:
        raise FordeError(
            "there is nothing to check; name a run, or give --config FILE.yaml or --set KEY=VALUE; --show alone prints "
            "the defaults."
        )
    count = len(given(asked).origins)
    where = config_file or run or "--set"
    say(f"{where}: {count} settings of forde {of}, all known; forde config --show prints them with the others")


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


class _Setting(NamedTuple):
    """A setting of the command, as it would be called now."""

    section: str
    key: str
    value: Any
    origin: str
    """Where the value is from: a file, a run, `--set` or the default; without a value what that means."""


def _settings(ctx: Any) -> Iterator[_Setting]:
    """Section by section."""
    said, keys = given(ctx), keys_of(ctx.command.params)
    params = {param.name: param for param in ctx.command.params}
    for section in SECTIONS:
        for key, name in keys.items():
            if key.startswith(f"{section}."):
                value, origin = _value(ctx, params[name]), said.origins.get(name)
                unsaid = UNSAID[not params[name].required]
                default = unsaid if value is None else "default"
                yield _Setting(section, key.split(".")[1], value, origin or default)
        if section == OPEN:
            _check_options(said.own, _value(ctx, params["method"]) if "method" in params else None)
            for key, value in said.own.items():
                yield _Setting(section, key, value, said.origins[f"{OPEN}.{key}"])


def _lines(settings: Sequence[_Setting]) -> Iterator[str]:
    """YAML, section by section, with remarks on where values come from."""
    for section, group in groupby(settings, lambda each: each.section):
        yield f"{section}:"
        for each in group:
            if each.value is None and each.origin in UNSAID:
                yield f"  # {each.key}: {each.origin}"
            else:
                yield f"  {each.key}: {_yaml(each.value)}  # {each.origin}"


def _by_section(settings: Sequence[_Setting]) -> dict[str, Any]:
    """For JSON: section → key → value and where it is from."""
    return {
        section: {each.key: {"value": each.value, "from": each.origin} for each in group}
        for section, group in groupby(settings, lambda each: each.section)
    }


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
