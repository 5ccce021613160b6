"""SIGKILL at any moment loses nothing: the run that goes on ends as the one that was left alone, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")]


def kills(folder: Path, *arguments: str) -> int:
    driver = Path(__file__).with_name("kills.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(driver), str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["kills"])


@pytest.mark.parametrize(("engine", "wanted"), [("eager", 20), ("vectorized", 10)])
def test_killed_at_random_moments(engine: str, wanted: int, tmp_path: Path) -> None:
    assert kills(tmp_path, "random", engine, "0", str(wanted)) >= wanted


def test_killed_while_writing_a_checkpoint(tmp_path: Path) -> None:
    assert kills(tmp_path, "writing") >= 30
