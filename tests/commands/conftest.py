from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import Forde, Result

from forde.__main__ import main


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs a command in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["forde", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            code: Any = main()
        except SystemExit as ended:
            code = ended.code
        return Result(int(code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def train(call: Callable[..., Result]) -> Forde:
    """Runs `forde train` in this process: data, run folder, further arguments."""

    def run(data: str | Path, folder: Path, *arguments: object) -> Result:
        return call("train", "--data", data, "--run", folder, *arguments)

    return run
