"""Training on a mesh of processes is training in one process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_cases import SPACES, VARIANTS, ConvBatchNorm, crash, resume, spoiled, train
from sharded_jobs import MISTAKES

import forde
from forde.__main__ import main
from forde.distributed.mesh import checked_shape, parse_shape

pytestmark = pytest.mark.slow
WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 300

FOUR, TWO = [(4, 1), (1, 4), (2, 2)], [(2, 1), (1, 2)]
TRAININGS = [
    *((method, "float64", "plain", mesh) for method in SPACES for mesh in FOUR + TWO),
    *((method, "float64", "plain", (2, 2)) for method in VARIANTS),
    *((method, "float32", "plain", (2, 2)) for method in SPACES),
    *(("input gradients, PCA", "float64", option, (2, 2)) for option in ("low memory", "adam", "loader")),
    ("deep-ensemble", "float64", "an order for each member", (2, 2)),
]
CROSSINGS = {
    "2x2, then 4x1": ((2, 2), (4, 1), 0.0),
    "2x2, then one process": ((2, 2), None, 0.0),
    "one process, then 1x4": (None, (1, 4), 0.0),
    "2x2, then 2x2, with dropout": ((2, 2), (2, 2), 0.2),
}


def name_of(*parts: Any) -> str:
    return "-".join(str(part) for part in parts).replace("/", "")


def jobs(folder: Path) -> dict[str, dict[str, Any]]:
    """For four processes; those for two have a mesh of two."""
    everything: dict[str, dict[str, Any]] = {
        name_of(*case): dict(zip(("kind", "method", "dtype", "option", "mesh"), ("training", *case), strict=True))
        for case in TRAININGS
    }
    everything |= {f"mistake-{name}": {"kind": "mistake", "name": name} for name in MISTAKES}
    everything |= {f"skipping-{what}": {"kind": "skipping", "what": what} for what in ("loss", "gradient")}
    everything |= {
        f"crossing-{name}": {
            "kind": "crossing", "run": str(folder / name), "left_on": left, "resumed_on": on, "dropout": dropout,
        }
        for name, (left, on, dropout) in CROSSINGS.items()
    }  # fmt: skip
    everything |= {kind: {"kind": kind, "run": str(folder / kind)} for kind in ("rolling_back", "stopped")}
    return everything | {kind: {"kind": kind} for kind in ("whole", "drawing")}


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mesh")


@pytest.fixture(scope="module")
def groups(folder: Path) -> Iterator[dict[int, Group]]:
    crash(folder / "one process, then 1x4", 7)
    everything = jobs(folder)
    work: dict[int, dict[str, dict[str, Any]]] = {2: {}, 4: {}}
    for name, job in everything.items():
        work[math.prod(job.get("mesh", (2, 2)))][name] = job
    started = {size: Group(folder / f"of{size}", size, those) for size, those in work.items()}
    yield started
    for group in started.values():
        group.close()


@cache
def alone(method: str, dtype: str, option: str) -> dict[str, Any]:
    return train(method, dtype, option)


def close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    for name, tensor in expected["state"].items():
        torch.testing.assert_close(
            found["state"][name], tensor, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )
    for record, other in zip(found["records"], expected["records"], strict=True):
        assert record.keys() == other.keys()
        for name in record.keys() - {"seconds"}:
            assert record[name] == pytest.approx(other[name], rel=100 * tolerance, abs=tolerance, nan_ok=True), name


@pytest.mark.parametrize("case", TRAININGS, ids=lambda case: name_of(*case))
def test_equals_one_process(case: tuple[str, str, str, tuple[int, int]], groups: dict[int, Group]) -> None:
    method, dtype, option, mesh = case
    expected = alone(method, dtype, option)
    for found in groups[math.prod(mesh)].result(name_of(*case)):
        close(found, expected, 1e-9 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_a_sentence_in_every_process(name: str, groups: dict[int, Group]) -> None:
    for found in groups[4].result(f"mistake-{name}"):
        assert MISTAKES[name][1] in found["message"]


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_all_skip_the_step_that_went_wrong_in_one(what: str, groups: dict[int, Group]) -> None:
    expected = spoiled(what)
    assert sum(record["skipped"] for record in expected["records"]) == 1
    for found in groups[4].result(f"skipping-{what}"):
        close(found, expected, 1e-9)


def test_all_roll_back(groups: dict[int, Group]) -> None:
    for found in groups[4].result("rolling_back"):
        assert [record["roll_backs"] for record in found["records"]] == [1.0, 1.0]
        assert found["records"][0]["lr"] == 0.025


@pytest.mark.parametrize("name", CROSSINGS)
def test_checkpoints_cross_meshes(name: str, groups: dict[int, Group], folder: Path) -> None:
    _, resumed_on, dropout = CROSSINGS[name]
    results = groups[4].result(f"crossing-{name}")
    if resumed_on is None:
        results = [resume(folder / name)]
    if dropout:  # no other mesh draws the same numbers
        (expected, *_), tolerance = groups[4].result("whole"), 0.0
    else:
        expected, tolerance = alone("input gradients, PCA", "float64", "plain"), 1e-9
    for found in results:
        close(found, expected, tolerance)
    loaded = forde.Ensemble.load(folder / name / "ensemble", lambda: ConvBatchNorm(dropout))
    for member, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, expected["state"][member].to(tensor), rtol=1e-5, atol=1e-5)


def test_a_signal_to_one_stops_all(groups: dict[int, Group], folder: Path) -> None:
    for found in groups[4].result("stopped"):
        assert found["message"].startswith("training stopped by SIGTERM at epoch 1, step 1;") and found["code"] == 143
    close(resume(folder / "stopped"), alone("input gradients, PCA", "float64", "plain"), 1e-9)


def test_each_process_drops_its_own_units(groups: dict[int, Group]) -> None:
    found = groups[4].result("drawing")
    assert len({tuple(each["inside"][0].tolist()) for each in found}) == 4
    assert len({tuple(each["outside"].tolist()) for each in found}) == 1
    for each in found:
        assert torch.equal(each["inside"][0], each["inside"][2]) and not torch.equal(*each["inside"][:2])


def test_mesh_without_torchrun_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "classification-2d", "--epochs", "1", "--members", "4", "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["forde", "train", *options, "--mesh", "2x2", "--device", "cpu"])
    assert main() == 1
    errors = capsys.readouterr().err
    assert "mesh 2x2 needs 4 processes" in errors and "torchrun" in errors and errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_one_process_alone() -> None:
    with pytest.raises(forde.FordeError, match=r"mesh 2x2 needs 4 processes, but the number started is 1; .*torchrun"):
        checked_shape((2, 2), 4)
    with pytest.raises(forde.FordeError, match="as in 2x4"):
        parse_shape("2*4")
    expected = alone("deep-ensemble", "float64", "plain")
    close(train("deep-ensemble", mesh="auto"), expected, 0.0)
