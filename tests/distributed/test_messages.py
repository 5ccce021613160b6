"""What processes say to each other holds no code, and one that says nothing for good ends the job."""

from __future__ import annotations

import ast
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import forde
from forde.distributed import rendezvous
from forde.distributed.messages import flattened, packed, unflattened, unpacked

SOURCE = Path(forde.__file__).parent


def same(found: Any, expected: Any) -> bool:
    """Equal in value and in type, at every depth."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    return found == expected or (isinstance(expected, float) and math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**70), 0.1, float("inf"), float("nan"), "Größe", [], {}, (), torch.bfloat16,
        [("weight", (2, 3), torch.float64)],
        {"epoch": 1.0, "loss": float("nan")},
        {1: "a", (1, 2): "b", "tuple": ["dict"], "tensor": "0"},
        {"random": torch.get_rng_state(), "half": torch.ones(2, 3, dtype=torch.bfloat16), "empty": torch.empty(0, 2)},
        ("name", {"number": torch.tensor(3.0), "row": torch.arange(6).view(2, 3)[:, 1]}, {"step": 2}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_messages_come_back(value: Any) -> None:
    assert same(unpacked(packed(value)), value)


def test_tensors_that_share_memory() -> None:
    shared = torch.arange(4.0)
    assert same(unpacked(packed([shared, shared[1:]])), [shared, shared[1:]])


def test_a_missing_gradient_stays_missing() -> None:
    """Also in a sum, unless another process has it; and each type travels by itself."""
    like = [torch.zeros(2, 3), torch.zeros(2, dtype=torch.float64), torch.zeros(1), torch.zeros(())]
    ours = [torch.ones(2, 3), None, None, torch.tensor(3.0)]
    theirs = [None, torch.ones(2, dtype=torch.float64), None, torch.tensor(4.0)]
    flat, other = flattened(ours, like), flattened(theirs, like)
    assert [each.dtype for each in flat] == [torch.float32, torch.float64]
    assert same(unflattened(flat, like), ours)
    total = [torch.ones(2, 3), torch.ones(2, dtype=torch.float64), None, torch.tensor(7.0)]
    assert same(unflattened([a + b for a, b in zip(flat, other, strict=True)], like), total)


def test_what_is_no_plain_value_is_not_sent() -> None:
    with pytest.raises(TypeError, match="a RuntimeError cannot be sent"):
        packed(RuntimeError("no"))


def test_no_pickle_between_processes() -> None:
    """torch's functions for objects pickle them; whoever reaches the port could send code."""
    for path in SOURCE.rglob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not {name for name in names if name.endswith(("_object", "_object_list"))}, path.name


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs gloo")
def test_a_process_that_hangs_ends_the_job() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    seconds = 3.0
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("hanging_train.py")
    first, second = (
        subprocess.Popen(
            [sys.executable, "-W", "error", str(script), str(seconds)], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, **place, "RANK": str(rank)},
        )
        for rank in range(2)
    )  # fmt: skip
    try:
        assert second.stdout is not None and second.stdout.readline() == "hanging\n"
        started = time.monotonic()
        output, _ = first.communicate(timeout=60)
        waited = time.monotonic() - started
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert first.returncode == 1, output
    assert f"has said nothing for {seconds / 60:g} minutes and counts as lost" in output and output.count("\n") == 1
    assert waited < 30


def test_the_time_is_stated() -> None:
    """The documentation says the number that is used."""
    page = (SOURCE.parents[1] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"said nothing for {rendezvous.SILENCE / 60:g} minutes" in page
