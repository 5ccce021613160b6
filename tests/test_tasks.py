"""docs/tasks.md: each task is short, ends as it says, and goes on and loads in a new process to the last bit."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from docs_pages import ROOT, blocks
from forde.errors import RunInterruptedError
from forde.training.history import History
from forde.training.loop import Loop

PAGE = ROOT / "docs" / "tasks.md"
DATA, *CODE = [block.code for block in blocks(PAGE) if block.language == "python"]
TITLES = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
TASKS = dict(zip(TITLES, CODE, strict=True))
NEEDS = {"transformers": "from transformers", "peft": "forde.adapters.lora"}
MOST_LINES = 25
STEPS = 4
"""After which a run is interrupted, within its second epoch."""
GO_ON = """
import os, runpy, sys, torch
torch.set_num_threads(1)  # as in the tests
for folder in sys.argv[1:]:
    os.chdir(folder)
    names = runpy.run_path("task.py", run_name="__main__")
    outputs = next(iter(vars(names["prediction"]).values()))
    torch.save({**names["loaded"].state_dict(), "outputs": outputs}, "loaded.pt")
"""
"""Goes on with tasks in their folders, and keeps the tensors and outputs of the ensembles that they load."""


def possible(code: str) -> bool:
    return all(find_spec(package) is not None for package, mark in NEEDS.items() if mark in code)


def run(code: str, folder: Path) -> dict[str, Any]:
    """A task in a folder, as `python task.py` would run it; what it leaves by name."""
    folder.mkdir(exist_ok=True)
    (folder / "task.py").write_text(f"{DATA}\n\n{code}", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.chdir(folder)
        return runpy.run_path("task.py", run_name="__main__")


def run_interrupted(code: str, folder: Path) -> None:
    """The same until SIGTERM comes, as a cluster sends it."""
    step, left = Loop._step, STEPS

    def counted(loop: Loop, *batch: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        step(loop, *batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_step", counted)
        with pytest.raises(RunInterruptedError):
            run(code, folder)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path, dict[str, Any]]]:
    """By title: the folder of a run, that of one that was interrupted and went on in a new process, and names."""
    root, found = tmp_path_factory.mktemp("tasks"), {}
    for number, (title, code) in enumerate(TASKS.items()):
        if possible(code):
            whole, broken = root / f"{number}-whole", root / f"{number}-broken"
            found[title] = whole, broken, run(code, whole)
            run_interrupted(code, broken)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    folders = [broken for _, broken, _ in found.values()]
    subprocess.run([sys.executable, "-c", GO_ON, *folders], check=True, env=environment)
    return found


def file_of(folder: Path, ensemble: str) -> bytes:
    (run_folder,) = (folder / "runs").iterdir()
    return (run_folder / ensemble / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("title", TASKS)
def test_a_task_is_whole(title: str, done: dict[str, tuple[Path, Path, dict[str, Any]]]) -> None:
    if title not in done:
        pytest.skip("needs a package that is not installed")
    whole, broken, names = done[title]
    history: History = names["history"]
    monitor = next(name for name in ("validation_crps", "validation_nll") if name in history.records[0])
    assert history.stopped is not None and history.best_epoch == len(history) - 3
    assert history[monitor][history.best_epoch] == min(history[monitor])
    assert file_of(whole, "ensemble") != file_of(whole, "last"), "the best epoch is not the last one"
    assert file_of(broken, "ensemble") == file_of(whole, "ensemble"), "resumed, it is another run"
    loaded = torch.load(broken / "loaded.pt", weights_only=True)
    outputs: Tensor = next(iter(vars(names["prediction"]).values()))
    assert torch.equal(loaded.pop("outputs"), outputs)
    own = names["loaded"].state_dict()
    assert own.keys() == loaded.keys() and all(torch.equal(own[name], loaded[name]) for name in own)


@pytest.mark.slow
@pytest.mark.parametrize("title", TASKS)
def test_a_task_that_is_done_loads_what_is_there(
    title: str, done: dict[str, tuple[Path, Path, dict[str, Any]]]
) -> None:
    if title not in done:
        pytest.skip("needs a package that is not installed")
    whole, _, names = done[title]
    before = file_of(whole, "ensemble")
    again = run(TASKS[title], whole)
    assert again["history"].records == names["history"].records and file_of(whole, "ensemble") == before
    for ensemble in (again["ensemble"], again["loaded"]):
        own = ensemble.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in names["loaded"].state_dict().items())


@pytest.mark.parametrize("title", TASKS)
def test_a_task_is_short(title: str) -> None:
    assert len([line for line in TASKS[title].splitlines() if line.strip()]) <= MOST_LINES
    for word in ("validation=", "patience=", "run=", "resume=True", "Ensemble.load("):
        assert word in TASKS[title]


def test_there_are_eight() -> None:
    assert len(TASKS) == 8
