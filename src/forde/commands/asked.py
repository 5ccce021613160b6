"""What a call of a command asked for, by sections, as a run keeps it and as a command that can be typed again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import typer

from forde.commands.settings_file import OPEN, SECTIONS, given
from forde.errors import FordeError

NOT_REPEATED = {"config", "overrides", "resume", "json_file"}


def settings_of(ctx: typer.Context) -> dict[str, dict[str, Any]]:
    """Section → key → value; what was left out and has no default is left out here too.

    A path to data is an absolute one, so that the run can be evaluated from anywhere.
    """
    found: dict[str, dict[str, Any]] = {}
    for section, keys in SECTIONS.items():
        values = {key: ctx.params[parameter] for key, parameter in keys.items() if parameter in ctx.params}
        own = given(ctx).own if section == OPEN else {}
        found[section] = {key: _plain(value) for key, value in {**values, **own}.items() if value is not None}
    for key in ("name", "dir"):
        if key in found["data"]:
            found["data"][key] = _absolute(found["data"][key])
    return {section: values for section, values in found.items() if values}


def command_of(ctx: typer.Context, *, command: str | None = None, only: Collection[str] | None = None) -> str:
    """The command with all that was given, by flags alone where there are flags; it needs no file of settings.

    Args:
        command: another one, which has the same flags.
        only: parameters to give it; all if left out.
    """
    words = ["forde", command or str(ctx.info_name), *_flags(ctx, only)]
    for name, value in given(ctx).own.items():
        words += ["--set", f"{OPEN}.{name}={value}"]
    return shlex.join(words)


def _flags(ctx: typer.Context, only: Collection[str] | None) -> Iterator[str]:
    for param in ctx.command.params:
        name = param.name or ""
        value, source = ctx.params.get(name), ctx.get_parameter_source(name)
        typed = source is not None and source.name != "DEFAULT" and value is not None and value is not False
        if typed and param.param_type_name == "argument":
            yield str(_plain(value))
            continue
        if not typed or name in NOT_REPEATED or (only is not None and name not in only):
            continue
        flag = max(param.opts, key=lambda name: name == "--out")
        yield from (flag,) if value is True else (flag, str(_plain(value)))


def refuse_model_of_file(ctx: typer.Context, name: str | None) -> str | None:
    """Callback of `--model`: code is named by whoever types the command, and never by a file that may be another's."""
    origin = given(ctx).origins.get("model")
    if name is not None and ":" in name and origin not in (None, "--set"):
        raise FordeError(
            f"{origin} names '{name}', which is code and not imported because a file names it; give it as "
            f"--model {name}."
        )
    return name


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _absolute(name: str) -> str:
    from forde.data import CATALOGUE

    path = Path(name).expanduser()
    return name if name in CATALOGUE or not path.exists() else str(path.absolute())
