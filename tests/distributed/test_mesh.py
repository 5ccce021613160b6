"""Training on a mesh of processes is training in one process."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_cases import METHODS, NETWORKS, SPACES, VARIANTS, changed, crash, resume, spoiled, train
from sharded_jobs import FALLBACKS, MISTAKES
from worker_group import Group

import forde
from forde.__main__ import main
from forde.distributed.mesh import checked_shape, parse_shape

pytestmark = pytest.mark.slow

FOUR, TWO = [(4, 1), (1, 4), (2, 2)], [(2, 1), (1, 2)]
TRAININGS = [
    *((method, "float64", "plain", mesh) for method in SPACES for mesh in FOUR + TWO),
    *((method, "float64", "plain", (2, 2)) for method in VARIANTS),
    *((method, "float32", "plain", (2, 2)) for method in SPACES),
    *(("input gradients, PCA", "float64", option, (2, 2)) for option in ("low memory", "adam", "loader")),
    ("deep-ensemble", "float64", "an order for each member", (2, 2)),
]
TRACED = [
    *((method, "float64", "plain", mesh) for method in SPACES for mesh in FOUR + TWO),
    *((method, "float64", "plain", (2, 2)) for method in VARIANTS),
    *(
        ("input gradients, PCA", "float64", option, (2, 2))
        for option in ("low memory", "looking at gradients", "last, smaller batch")
    ),
]
STACKED = [
    *((method, "float64", "plain", (2, 2)) for method in METHODS),
    *((method, "float64", "plain", mesh) for method in SPACES for mesh in ((4, 1), (1, 2))),
    ("input gradients, PCA", "float64", "averaged", (2, 2)),
    *((method, "float64", "in parts", (2, 2)) for method in ("weights", "input gradients, PCA")),
]
"""Perceptrons where a batch is shared, and networks with BatchNorm elsewhere."""
CROSSINGS = {
    "2x2, then 4x1": ((2, 2), (4, 1), 0.0, "eager"),
    "2x2, then one process": ((2, 2), None, 0.0, "eager"),
    "one process, then 1x4": (None, (1, 4), 0.0, "eager"),
    "2x2, then 2x2, with dropout": ((2, 2), (2, 2), 0.2, "eager"),
    "2x2, then 4x1, traced": ((2, 2), (4, 1), 0.0, "compiled"),
    "2x2, then 1x4, stacked": ((2, 2), (1, 4), 0.0, "vectorized"),
    "4x1, then one process, stacked": ((4, 1), None, 0.0, "vectorized"),
}
CHANGES = {
    "in all processes": {"mesh": (2, 2), "members": (0, 4), "in": (0, 1, 2, 3)},
    "in one process's members": {"mesh": (4, 1), "members": (2, 3), "in": (2,)},
}


def network_of(engine: str, mesh: tuple[int, int]) -> str:
    """Stacked members know nothing of other processes' samples, and so cannot have BatchNorm over them."""
    return "perceptron" if engine == "vectorized" and mesh[1] > 1 else "convolution"


def name_of(*parts: Any) -> str:
    return "-".join(str(part) for part in parts).replace("/", "")


def jobs(folder: Path) -> dict[str, dict[str, Any]]:
    """For four processes; those for two have a mesh of two."""
    everything: dict[str, dict[str, Any]] = {
        name_of(engine, *case): {
            **dict(zip(("method", "dtype", "option", "mesh"), case, strict=True)),
            "kind": "training", "engine": engine, "network": network_of(engine, case[-1]),
        }
        for engine, cases in (("eager", TRAININGS), ("compiled", TRACED), ("vectorized", STACKED))
        for case in cases
    }  # fmt: skip
    everything |= {f"mistake-{name}": {"kind": "mistake", "name": name} for name in MISTAKES}
    everything |= {f"skipping-{what}": {"kind": "skipping", "what": what} for what in ("loss", "gradient")}
    everything |= {
        f"crossing-{name}": {
            "kind": "crossing", "run": str(folder / name), "left_on": left, "resumed_on": on, "dropout": dropout,
            "engine": engine, "network": network_of(engine, (2, 2)),
        }
        for name, (left, on, dropout, engine) in CROSSINGS.items()
    }  # fmt: skip
    everything |= {f"falling_back-{name}": {"kind": "falling_back", "name": name, "mesh": (2, 2)} for name in FALLBACKS}
    everything |= {
        f"hooked-{engine}": {"kind": "hooked", "engine": engine, "mesh": (2, 2)} for engine in ("auto", "compiled")
    }
    everything |= {f"changing-{name}": {"kind": "changing", **change} for name, change in CHANGES.items()}
    everything["changing-one of two that share"] = {
        "kind": "changing", "mesh": (2, 2), "members": (0, 4), "in": (1,),
    }  # fmt: skip
    everything |= {kind: {"kind": kind, "run": str(folder / kind)} for kind in ("rolling_back", "stopped")}
    return everything | {kind: {"kind": kind} for kind in ("whole", "drawing", "leaving")}


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
def alone(method: str, dtype: str, option: str, network: str = "convolution") -> dict[str, Any]:
    return train(method, dtype, option, network)


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
    for found in groups[math.prod(mesh)].result(name_of("eager", *case)):
        close(found, expected, 1e-9 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("case", TRACED, ids=lambda case: name_of(*case))
def test_traced_steps_equal_one_process(case: tuple[str, str, str, tuple[int, int]], groups: dict[int, Group]) -> None:
    method, dtype, option, mesh = case
    results = groups[math.prod(mesh)].result(name_of("compiled", *case))
    for found in results:
        close(found, alone(method, dtype, option), 1e-9)
    said = " ".join(results[0]["said"])
    assert "engine: compiled in" in said and "after all" not in said


@pytest.mark.parametrize("case", STACKED, ids=lambda case: name_of(*case))
def test_stacked_steps_equal_one_process(case: tuple[str, str, str, tuple[int, int]], groups: dict[int, Group]) -> None:
    method, dtype, option, mesh = case
    results = groups[math.prod(mesh)].result(name_of("vectorized", *case))
    for found in results:
        close(found, alone(method, dtype, option, network_of("vectorized", mesh)), 1e-9)
    assert "members stacked" in " ".join(results[0]["said"])


@pytest.mark.parametrize("name", FALLBACKS)
def test_no_process_compiles_what_one_cannot(name: str, groups: dict[int, Group]) -> None:
    results = groups[4].result(f"falling_back-{name}")
    for found in results:
        close(found, alone("outputs", "float64", "plain"), 1e-9)
    said = " ".join(results[0]["said"])
    assert "engine: eager after all" in said and "compiled in" not in said


@pytest.mark.parametrize("engine", ["auto", "compiled"])
def test_hooks_in_one_process_keep_all_from_stacking_and_compiling(engine: str, groups: dict[int, Group]) -> None:
    results = groups[4].result(f"hooked-{engine}")
    for found in results:
        close(found, alone("input gradients, PCA", "float64", "plain", "perceptron"), 1e-9)
    said = " ".join(results[0]["said"])
    assert "stacked)" not in said and "compiled in" not in said


@pytest.mark.parametrize("name", CHANGES)
def test_all_follow_a_change(name: str, groups: dict[int, Group]) -> None:
    expected = changed(range(*CHANGES[name]["members"]))
    results = groups[4].result(f"changing-{name}")
    for found in results:
        close(found, expected, 1e-9)
    assert sum("engine: compiled in" in line for line in results[0]["said"]) == 2


def test_a_change_in_one_of_those_that_share_a_batch_is_a_sentence_in_all(groups: dict[int, Group]) -> None:
    for found in groups[4].result("changing-one of two that share"):
        assert "eps = 0.01 instead of 1e-05 in one process, but not in all that share a batch" in found["message"]


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
    _, resumed_on, dropout, engine = CROSSINGS[name]
    network = network_of(engine, (2, 2))
    results = groups[4].result(f"crossing-{name}")
    if resumed_on is None:
        results = [resume(folder / name, network=network)]
    if dropout:  # no other mesh draws the same numbers
        (expected, *_), tolerance = groups[4].result("whole"), 0.0
    else:
        expected, tolerance = alone("input gradients, PCA", "float64", "plain", network), 1e-9
    for found in results:
        close(found, expected, tolerance)
    loaded = forde.Ensemble.load(folder / name / "ensemble", lambda: NETWORKS[network](dropout))
    for member, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, expected["state"][member].to(tensor), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux shows them")
def test_a_mesh_leaves_no_threads(groups: dict[int, Group]) -> None:
    """A script that has a process group of its own may train many ensembles."""
    for found in groups[4].result("leaving"):
        assert len(set(found["threads"])) == 1


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
