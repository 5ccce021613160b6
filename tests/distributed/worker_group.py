"""Starts the processes of `worker.py`, and reads what they have to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 300
"""Seconds until a job that is not done counts as hanging."""


class Group:
    """Processes that work through a list of jobs while tests look at what is done."""

    def __init__(self, folder: Path, size: int, work: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "jobs.json").write_text(json.dumps(work))
        self.log = (folder / "log.txt").open("w")
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-W", "error", str(WORKER), str(folder)],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"},
                stdout=self.log, stderr=subprocess.STDOUT,
            )
            for rank in range(size)
        ]  # fmt: skip

    def result(self, name: str) -> list[dict[str, Any]]:
        """What each process had to say."""
        deadline = time.monotonic() + PATIENCE
        path, done = self.folder / f"{name}.pt", False
        while not done and time.monotonic() < deadline:
            done = any(process.poll() is not None for process in self.processes)
            if path.exists():
                return self.checked(torch.load(path))
            time.sleep(0.05)
        raise AssertionError((self.folder / "log.txt").read_text()[-3000:] or "the processes did not answer")

    def checked(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for rank, each in enumerate(found):
            assert "failed" not in each, f"process {rank}: {each['failed']}"
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.log.close()
