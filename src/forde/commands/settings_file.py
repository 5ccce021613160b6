"""Settings of a training in YAML, by sections, and the options of commands that they stand for.

    data: {name: wine.csv, target: cultivar}
    model: {name: mlp, hidden: [64, 64], members: 5}
    method: {name: forde, strength: 10}
    training: {epochs: 20, lr: 0.05}
    execution: {device: cpu}

A section that is a word alone is its name: `data: digits`. What a file and `--set` say takes the place of an option's
default, so that types are checked as those of flags are, and a flag counts more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from forde.errors import FordeError, first_line, unknown_name

SECTIONS: dict[str, dict[str, str]] = {
    "data": {"name": "data", "dir": "data_dir", "target": "target", "task": "task", "drop": "drop",
             "test": "test", "augment": "augment"},
    "model": {"name": "model", "hidden": "hidden", "members": "members"},
    "method": {"name": "method", "strength": "strength", "alpha": "alpha", "prior": "prior",
               "weight_decay": "weight_decay"},
    "training": {"epochs": "epochs", "batch_size": "batch_size", "optimizer": "optimizer", "lr": "lr", "seed": "seed",
                 "validation": "validation", "patience": "patience", "monitor": "monitor"},
    "tuning": {"trials": "trials", "search": "search", "clean_budget": "clean_budget", "seeds": "seeds",
               "storage": "storage", "study": "study"},
    "execution": {"out": "out", "device": "device", "precision": "precision", "engine": "engine", "memory": "memory",
                  "mesh": "mesh", "checkpoint_every": "checkpoint_every", "checkpoint_minutes": "checkpoint_minutes",
                  "keep": "keep", "non_finite": "non_finite"},
}  # fmt: skip
"""Section → key → parameter of a command."""
OPEN = "method"
"""The section that takes other keys too: options of the method's own."""
MOST_BYTES = 1 << 20
META = "forde.settings"


@dataclass
class Given:
    """What a file and `--set` say about one call of a command."""

    origins: dict[str, str] = field(default_factory=dict)
    """Parameter or `method.option` → the file, or `--set`."""
    own: dict[str, Any] = field(default_factory=dict)
    """Options of the method's own."""


def given(ctx: typer.Context) -> Given:
    """What was said so far."""
    found: Given = ctx.meta.setdefault(f"{META}.{ctx.info_name}", Given())
    return found


def read_file(ctx: typer.Context, file: Path | None) -> Path | None:
    """Callback of `--config`."""
    if file is not None and not ctx.resilient_parsing:
        for key, value in flattened(_parsed(Path(file)), str(file)):
            take(ctx, key, value, str(file))
    return file


def read_overrides(ctx: typer.Context, overrides: list[str] | None) -> list[str] | None:
    """Callback of `--set`."""
    if not ctx.resilient_parsing:
        for text in overrides or ():
            key, sign, value = text.partition("=")
            if not sign:
                raise FordeError(f"--set is '{text}', but KEY=VALUE was expected, as in training.epochs=30.")
            take(ctx, key.strip(), _value(value, text), "--set")
    return overrides


def take(ctx: typer.Context, key: str, value: Any, origin: str) -> None:
    """Put a value in the place of an option's default; what `--set` says stays, in whatever order they come."""
    known = keys_of(ctx.command.params)
    section, _, name = key.partition(".")
    said = given(ctx)
    parameter = known.get(key)
    if parameter is None and not (section == OPEN and name and "." not in name and f"{OPEN}.name" in known):
        raise unknown_name(f"setting in {origin}", key, known)
    at = parameter or key
    if said.origins.get(at) == "--set" != origin:
        return
    said.origins[at] = origin
    if parameter is None:
        said.own[name] = value
    else:
        ctx.default_map = {**(ctx.default_map or {}), parameter: _as_typed(value, key, origin)}


def keys_of(params: Sequence[Any]) -> dict[str, str]:
    """`section.key` → parameter, of those that a command has."""
    there = {param.name for param in params}
    return {
        f"{section}.{key}": parameter
        for section, keys in SECTIONS.items()
        for key, parameter in keys.items()
        if parameter in there
    }


def flattened(content: Mapping[str, Any], origin: str) -> Iterator[tuple[str, Any]]:
    """`section.key` and value of each.

    >>> [*flattened({"data": "digits", "training": {"epochs": 3}}, "run.yaml")]
    [('data.name', 'digits'), ('training.epochs', 3)]
    """
    for section, values in content.items():
        if section not in SECTIONS:
            raise unknown_name(f"section in {origin}", section, SECTIONS)
        if isinstance(values, Mapping):
            yield from ((f"{section}.{key}", value) for key, value in values.items())
        elif values is not None:
            if "name" not in SECTIONS[section]:
                raise FordeError(f"{section} in {origin} is {values!r}, but keys with values were expected.")
            yield f"{section}.name", values


def _parsed(file: Path) -> Mapping[str, Any]:
    yaml = _yaml()
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise FordeError(f"--config {file} cannot be read: {error.strerror}; name a YAML file.") from None
    if len(content) > MOST_BYTES:
        raise FordeError(f"--config {file} has more than {MOST_BYTES:,} bytes, so it is no file of settings.")
    try:
        parsed = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise FordeError(f"--config {file} is no YAML{line}: {problem}; correct it.") from None
    if not isinstance(parsed, Mapping):
        raise FordeError(f"--config {file} holds no sections, but some of {', '.join(SECTIONS)} were expected.")
    return parsed


def _value(text: str, whole: str) -> Any:
    yaml = _yaml()
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise FordeError(
            f"the value in --set '{whole}' is no YAML; put text with special characters in quotes."
        ) from None


def _as_typed(value: Any, key: str, origin: str) -> Any:
    """As it would be typed after a flag."""
    if isinstance(value, list) and all(isinstance(one, (str, int, float)) for one in value):
        return ",".join(map(str, value))
    if isinstance(value, (Mapping, list)):
        raise FordeError(f"{key} in {origin} is {value!r}, but one value was expected.")
    return value if isinstance(value, bool) or value is None else str(value)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise FordeError("settings in YAML need PyYAML; run: pip install 'forde[cli]'") from None
    return yaml
