"""The command line as it is installed: the script `forde` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(sys.executable).with_name("forde")
WORDS = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "forde"]


def environment(**others: str) -> dict[str, str]:
    """One thread, and enough columns that no line is broken."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **others}


def forde(*arguments: object, cwd: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is."""
    return subprocess.run(
        [*WORDS, *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, check=False, env=environment(), timeout=300, **options,
    )  # fmt: skip


def done(*arguments: object, cwd: Path | None = None) -> str:
    """What a command that must succeed prints on stdout."""
    result = forde(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(*arguments: object, cwd: Path | None = None) -> str:
    """The sentence of a command that must fail."""
    result = forde(*arguments, cwd=cwd)
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr
