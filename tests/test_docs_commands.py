"""Every command that the documentation or a help page shows exists, with all its options and values."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import forde
from docs_pages import PAGES, ROOT, blocks, commands_in_sentences, forde_words, shell_lines
from forde.cli import app

ROOT_COMMAND: Any = typer.main.get_command(app)


def found(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and what is left for it."""
    command, rest = ROOT_COMMAND, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-") and rest[0] != "…":
        assert rest[0] in command.commands, f"forde {' '.join(words)}: there is no '{rest[0]}'"
        command = command.commands[rest.pop(0)]
    return command, rest


def check_options(words: list[str]) -> None:
    command, rest = found(words)
    known = {"--help"} | {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in rest:
        option = word.strip("[]").split("=")[0]
        assert not option.startswith("-") or option in known | {"-"}, f"forde {' '.join(words)}: there is no '{option}'"


def check_line(words: list[str]) -> None:
    """It could be run as it is: options, their values, and what must be given."""
    check_options(words)
    command, rest = found(words)
    if hasattr(command, "commands"):
        return
    given = command.make_context("forde", rest).params
    names = [name for key in ("method", "methods") if isinstance(given.get(key), str) for name in given[key].split(",")]
    assert set(names) <= {*forde.methods()}, f"forde {' '.join(words)}"


def lines_with_forde() -> list[Any]:
    return [
        pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
        for page in PAGES
        for line in shell_lines(page)
        if (words := forde_words(line))
    ]


@pytest.fixture
def with_shown_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that pages show, which lines may name."""
    monkeypatch.chdir(tmp_path)
    for block in (block for page in PAGES for block in blocks(page) if block.file):
        Path(block.file or "").write_text(block.code, encoding="utf-8")


@pytest.mark.parametrize("words", lines_with_forde())
def test_shown_lines_could_be_run(words: list[str], with_shown_files: None) -> None:
    check_line(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist(page: Path) -> None:
    for words in commands_in_sentences(page):
        check_options(words)


def every_command(command: Any = ROOT_COMMAND, path: tuple[str, ...] = ()) -> Iterator[Any]:
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, (*path, name))
    if not hasattr(command, "commands"):
        yield pytest.param(path, command, id=" ".join(path))


@pytest.mark.parametrize(("path", "command"), [*every_command()])
def test_examples_of_help_could_be_run(path: tuple[str, ...], command: Any) -> None:
    """Each is one of its own command; every command with options has one."""
    paragraph = r"(?:^|Examples?:)\s*(forde (?:.|\n(?!\s*(?:\n|forde |Example)))*)"
    examples = re.findall(paragraph, command.help or "", re.MULTILINE)
    assert examples or not command.params, f"forde {' '.join(path)} --help shows no example"
    for example in examples:
        words = forde_words(" ".join(example.split()))
        assert words is not None and tuple(words[: len(path)]) == path, example
        check_line(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m (forde[\w.]*)", text):
        assert importlib.util.find_spec(module), f"{page.name}: python -m {module}"
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`| {4})make ([\w-]+)", text)) <= targets
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = re.findall(r'pip install "?(?:\.|forde)\[([\w,]+)\]', text)
    for extra in {extra for names in asked for extra in names.split(",")}:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"{page.name}: there is no extra '{extra}'"
