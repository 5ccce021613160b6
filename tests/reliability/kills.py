"""Trains in child processes and kills them. A process of its own: forking is safe only where there is one thread.

    python kills.py FOLDER random ENGINE SEED KILLS
    python kills.py FOLDER writing

Prints one line of JSON with the number of kills; fails with an assertion if any result differs from the reference.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from short_runs import metrics, result, train

from forde import durable


def child(work: Callable[[], object]) -> int:
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    return process


def ended(process: int) -> int:
    """Exit status; −9 for a killed process."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def same(run: Path, reference: Path) -> None:
    assert result(run) == result(reference), f"{run} ended with other weights"
    assert metrics(run) == metrics(reference), f"{run} has other records"


def at_random_moments(folder: Path, engine: str, seed: int, wanted: int) -> int:
    reference = folder / "reference"
    started = time.perf_counter()
    assert ended(child(lambda: train(reference, engine=engine))) == 0
    duration = time.perf_counter() - started
    moments, kills, runs = random.Random(seed), 0, 0
    while kills < wanted:
        run = folder / f"run{runs}"
        runs += 1
        while True:
            process = child(lambda run=run: train(run, engine=engine, resume=True))
            time.sleep(moments.uniform(0, 0.6 * duration))
            os.kill(process, signal.SIGKILL)
            if ended(process) == 0:
                break
            kills += 1
        same(run, reference)
    return kills


class Killer:
    """Replaces one of the functions that write a checkpoint by one that dies at the n-th call."""

    def __init__(self, at: int, place: str, share: float = 0.0) -> None:
        self.left, self.place, self.share = at, place, share

    def __enter__(self) -> None:
        pour, replace, unlink = durable._pour, Path.replace, Path.unlink

        def dies(of_checkpoint: bool) -> bool:
            self.left -= of_checkpoint
            return of_checkpoint and self.left == 0

        def killed_pour(file, content: bytes) -> None:
            wanted = {"tensors": ".safetensors.tmp", "text": ".json.tmp"}.get(self.place, "none")
            if dies("checkpoints" in file.name and file.name.endswith(wanted)):
                pour(file, content[: int(self.share * len(content))])
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            pour(file, content)

        def killed_replace(path: Path, target: Path) -> Path:
            watched = "checkpoints" in str(path)
            if self.place == "before rename" and dies(watched):
                os.kill(os.getpid(), signal.SIGKILL)
            done = replace(path, target)
            if self.place == "after rename" and dies(watched):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        def killed_unlink(path: Path, missing_ok: bool = False) -> None:
            unlink(path, missing_ok=missing_ok)
            if self.place == "deleting" and dies("checkpoints" in str(path)):
                os.kill(os.getpid(), signal.SIGKILL)

        durable._pour, Path.replace, Path.unlink = killed_pour, killed_replace, killed_unlink

    def __exit__(self, *_: object) -> None:
        """The process is over."""


def while_writing(folder: Path) -> int:
    reference = folder / "reference"
    assert ended(child(lambda: train(reference))) == 0
    points = [(n, place, share) for place in ("tensors", "text") for n in (1, 2, 9) for share in (0, 0.001, 0.5, 1)]
    points += [(n, place, 0) for place in ("before rename", "after rename") for n in (1, 2, 3, 12, 13)]
    points += [(n, "deleting", 0) for n in (1, 2, 5)]

    def train_and_die(run: Path, n: int, place: str, share: float) -> None:
        with Killer(n, place, share):
            train(run, resume=True)

    for i, (n, place, share) in enumerate(points):
        run = folder / f"run{i}"
        assert ended(child(lambda args=(run, n, place, share): train_and_die(*args))) == -9, (place, n, share)
        assert ended(child(lambda run=run: train(run, resume=True))) == 0
        same(run, reference)
    return len(points)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]) / "warm-up")  # what is imported on first use would take each child a second
    if sys.argv[2] == "random":
        killed = at_random_moments(Path(sys.argv[1]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        killed = while_writing(Path(sys.argv[1]))
    print(json.dumps({"kills": killed}))
