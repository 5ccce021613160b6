from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import Forde, Result

from forde.__main__ import main


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Forde:
    """Runs `forde train` in this process: data, run folder, further arguments."""

    def run(data: str | Path, folder: Path, *arguments: object) -> Result:
        given = ["forde", "train", "--data", str(data), "--run", str(folder), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", given)
        try:
            code: Any = main()
        except SystemExit as ended:
            code = ended.code
        return Result(int(code or 0), *capsys.readouterr())

    return run
