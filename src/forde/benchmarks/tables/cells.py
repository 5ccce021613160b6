"""A cell: one peer on one data set, over several splits, kept in a file that is written anew after each of them."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from forde.benchmarks.machine import machine
from forde.benchmarks.tables.data_sets import Split, TableSet, Task, data_set, split
from forde.benchmarks.tables.peers import Peer, all_options, one_perceptron, peer
from forde.benchmarks.tables.scores import classification_scores, regression_scores
from forde.durable import explaining_writes, make_folder, write_whole
from forde.errors import FordeError, first_line
from forde.hashing import json_name
from forde.training.git_state import git_state

Status = Literal["done", "there", "failed", "left out"]

CELLS = "cells"
"""Folder of the result files."""
DIGITS = 6
"""Significant digits that are kept."""


@dataclass(frozen=True)
class Cell:
    """What decides a file's numbers."""

    data: TableSet
    peer: Peer

    @property
    def identity(self) -> dict[str, Any]:
        """The set, the peer and its options, as JSON."""
        options = all_options(self.peer, self.data.task)
        return {"set": self.data.name, "rows": self.data.train_rows, "peer": self.peer.name, "options": options}

    @property
    def name(self) -> str:
        """Readable, and another one for other options.

        >>> from forde.benchmarks.tables.data_sets import data_set
        >>> from forde.benchmarks.tables.peers import peer
        >>> Cell(data_set("iris"), peer("mlp")).name[:-9]
        'iris-mlp'
        """
        return f"{self.data.name}-{self.peer.name}-{json_name(self.identity)[:8]}"

    def path(self, out: Path) -> Path:
        """Its file."""
        return out / CELLS / f"{self.name}.json"


@dataclass(frozen=True)
class Outcome:
    """How a cell's turn ended, with a line for people."""

    cell: Cell
    status: Status
    line: str
    seconds: float = 0.0


def read_splits(cell: Cell, out: Path) -> dict[int, dict[str, float]]:
    """The scores of the splits that are done, by their numbers; none where the file is missing or damaged."""
    try:
        content = json.loads(cell.path(out).read_bytes())
        return {int(number): dict(scores) for number, scores in content["splits"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def run_cell(cell: Cell, splits: int, out: Path) -> Outcome:
    """Fit and score the splits that are not in the file; an error becomes an outcome, so that others go on."""
    started, done = time.perf_counter(), read_splits(cell, out)
    wanted = [number for number in range(splits) if number not in done]
    if not wanted:
        return Outcome(cell, "there", "is there")
    try:
        for number in wanted:
            part = split(cell.data, number)
            if cell.peer.most_rows is not None and len(part.y_train) > cell.peer.most_rows:
                line = f"{cell.peer.name} takes too long on more than {cell.peer.most_rows} training rows"
                return Outcome(cell, "left out", line)
            with one_thread(), quietly():
                _warm_up(cell.peer.name, cell.data.task)
                done[number] = _scores(cell, part, number)
            _write(cell, dict(sorted(done.items())), out)
    except Exception as error:  # what peers raise has no common base
        return Outcome(cell, "failed", f"{type(error).__name__}: {first_line(error)}", time.perf_counter() - started)
    return Outcome(cell, "done", summary(done[wanted[-1]]), time.perf_counter() - started)


def summary(scores: dict[str, float]) -> str:
    """One line of a split's scores.

    >>> summary({"accuracy": 0.91, "nll": 0.25, "fit_s": 0.1, "ratio": 2.0})
    'accuracy 0.910, nll 0.250, ratio 2.0'
    """
    shown = [f"{name} {scores[name]:.3f}" for name in ("accuracy", "rmse", "nll", "coverage") if name in scores]
    return ", ".join([*shown, f"ratio {scores['ratio']:.1f}"])


def _scores(cell: Cell, part: Split, seed: int) -> dict[str, float]:
    """Scores of one split, and processor seconds of the fit and of one perceptron right before it."""
    task = cell.data.task
    one, _ = timed(lambda: one_perceptron(task, part.x_train, part.y_train, seed))
    seconds, predict = timed(lambda: _fitted(cell.peer, task, part, seed))
    found = predict(part.x_test)
    if task == "classification":
        scores = classification_scores(found, part.y_test)
    else:
        scores = regression_scores(found, part.y_test, float(part.y_train.std()))
    wrong = [name for name, value in scores.items() if not math.isfinite(value)]
    if wrong:
        raise FordeError(f"{', '.join(wrong)} of split {seed} is not finite; leave the peer or the set out.")
    return {**scores, "fit_s": seconds, "mlp_s": one, "ratio": seconds / one}


def _fitted(each: Peer, task: Task, part: Split, seed: int) -> Callable[..., Any]:
    fit: Callable[..., Any] = each.classify if task == "classification" else each.predict
    predict: Callable[..., Any] = fit(part.x_train, part.y_train, seed, each.options.get(task, {}))
    return predict


@cache
def _warm_up(name: str, task: Task) -> None:
    """Fit a peer once in this process, since what is imported in a first fit is no part of what a fit takes."""
    part = split(data_set("moons" if task == "classification" else "waves"), 0)
    one_perceptron(task, part.x_train, part.y_train, 0)
    _fitted(peer(name), task, part, 0)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of this process's processor, which others on the machine do not slow down, and the result.

    >>> seconds, total = timed(lambda: sum(range(1000)))
    >>> seconds < 1, total
    (True, 499500)
    """
    started = time.process_time()
    found = run()
    return time.process_time() - started, found


@contextmanager
def one_thread() -> Iterator[None]:
    """torch and the libraries below numpy and scikit-learn with one thread each: all times are then of one core."""
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quietly() -> Iterator[None]:
    """Without the peers' own warnings, such as a perceptron's that more epochs might help: the scores say it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _write(cell: Cell, splits: dict[int, dict[str, float]], out: Path) -> None:
    git = git_state() or {}
    content = {
        "cell": cell.identity,
        "splits": {str(number): _rounded(scores) for number, scores in splits.items()},
        "run": {"machine": machine(), "commit": git.get("commit"), "dirty": git.get("dirty")},
    }
    path = cell.path(out)
    with explaining_writes(path.parent, "free some space or make it writable, and run the same command again"):
        make_folder(path.parent)
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def _rounded(scores: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.{DIGITS}g}") for name, value in scores.items()}


def run_cells(cells: Sequence[Cell], splits: int, out: Path, jobs: int = 1) -> Iterator[Outcome]:
    """Run cells in so many processes; outcomes as they come."""
    from joblib import Parallel, delayed

    if jobs == 1:
        yield from (run_cell(cell, splits, out) for cell in cells)
        return
    out = out.absolute()  # processes that are used again stand in the folder in which they began
    work = (
        delayed(_run_numbered)(number, cell.data.name, cell.peer.name, splits, out) for number, cell in enumerate(cells)
    )
    for number, status, line, seconds in Parallel(jobs, return_as="generator_unordered", pre_dispatch="n_jobs")(work):
        yield Outcome(cells[number], status, line, seconds)


def _run_numbered(number: int, data: str, name: str, splits: int, out: Path) -> tuple[int, Status, str, float]:
    """A cell in another process, to which names travel: functions of sets and peers need not."""
    outcome = run_cell(Cell(data_set(data), peer(name)), splits, out)
    return number, outcome.status, outcome.line, outcome.seconds
