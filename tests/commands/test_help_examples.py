"""Every example that a help page shows is run as it stands there, with fewer epochs and members."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import data_files as files
import pytest
import typer
from small_runs import SMALL, Result, quantities, written

from docs_pages import forde_words
from forde.cli import app
from shown_lines import lay_out, smaller, why_not

NETWORKS = """
import torch


def small():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
ELSEWHERE = "forde demo "
"""Runs in test_cli.py, where what it prints and draws is looked at."""
NEEDS = {"evaluate": ["images"], "compare": ["images", "second"], "report": ["images", "second"], "predict": ["table"]}
"""Command → runs that its example names."""


def examples(command: Any) -> Iterator[Any]:
    for below in getattr(command, "commands", {}).values():
        yield from examples(below)
    if not hasattr(command, "commands"):
        paragraph = r"(?:^|Examples?:)\s*(forde (?:.|\n(?!\s*(?:\n|forde |Example)))*)"
        for found in re.findall(paragraph, command.help or "", re.MULTILINE):
            line = " ".join(found.split())
            if why_not(line) is None and not line.startswith(ELSEWHERE):
                yield pytest.param(line, id=line[:60])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORDE_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("efficientnet_lite_pytorch", "my_networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "my_networks.py").write_text(NETWORKS)
    for place, image in enumerate(files.noise(20, (8, 8))):
        files.write_image(tmp_path / "pictures" / "train" / str(place % 10) / f"{place}.png", image)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("line", [*examples(typer.main.get_command(app))])
def test_it_runs(line: str, folder: Path, call: Callable[..., Result]) -> None:
    words = forde_words(line)
    assert words is not None
    kinds = NEEDS.get(words[0], [])
    if "table" in kinds:
        assert call("train", "--data", written(folder / "t.csv", quantities()), "--out", "runs/a", *SMALL).code == 0
        written(folder / "new.csv", quantities()[["a", "b"]])
    for name in [run for kind, run in (("images", "a"), ("second", "b")) if kind in kinds]:
        assert call("train", "--data", "digits", "--out", f"runs/{name}", *SMALL).code == 0
        if words[0] == "compare":
            assert call("evaluate", f"runs/{name}").code == 0
    result = call(*smaller(words))
    assert result.code == 0, result
    out = next((words[place + 1] for place, word in enumerate(words) if word == "--out"), None)
    assert out is None or Path(out).exists()
