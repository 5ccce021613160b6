"""Two processes that share one GPU, gloo between them, make the compiled steps of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from sharded_cases import five_steps_on_gpu
from worker_group import Group

pytestmark = [pytest.mark.cuda, pytest.mark.slow]

CASES = {
    "members, captured": {"mesh": (2, 1), "network": "convolution", "fuse": False, "captures": 1},
    "members, fused and captured": {"mesh": (2, 1), "network": "convolution", "fuse": True, "captures": 1},
    "data, captured": {"mesh": (1, 2), "network": "perceptron", "fuse": False, "captures": 1},
    "data, BatchNorm sends messages": {"mesh": (1, 2), "network": "convolution", "fuse": False, "captures": 0},
    "data, fused, BatchNorm sends messages": {"mesh": (1, 2), "network": "convolution", "fuse": True, "captures": 0},
}
METHODS = ("input gradients, PCA", "SVGD, weights")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    work = {
        f"{name}-{method}": {"kind": "on_gpu", "method": method, **case}
        for name, case in CASES.items()
        for method in METHODS
    }
    found = Group(tmp_path_factory.mktemp("gpu"), 2, work)
    yield found
    found.close()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_that_share_a_gpu(name: str, method: str, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: case["fuse"])
    expected = five_steps_on_gpu(method, case["network"])
    for found in group.result(f"{name}-{method}"):
        assert found["captures"] == case["captures"]
        for key, tensor in expected.items():
            torch.testing.assert_close(
                found["state"][key], tensor, rtol=1e-4, atol=1e-4 * float(tensor.double().abs().max() + 1e-3),
                msg=lambda text, key=key: f"{key}: {text}",
            )  # fmt: skip
    said = " ".join(group.result(f"{name}-{method}")[0]["said"])
    assert "engine: compiled in" in said and "after all" not in said
