"""Sources of random numbers: read and set in one module, and kept in files as they always were."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forde
from forde.hashing import array_name
from forde.random_state import (
    TORCH,
    get_random_state,
    random_tensors,
    seed_source,
    set_random_state,
    set_random_tensors,
    set_source_state,
    source_state,
)

SOURCE = Path(forde.__file__).parent
CPU = torch.device("cpu")
READING = {
    *("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"),
    *("get_state", "set_state", "getstate", "setstate", "bit_generator"),
}
DRAWS: dict[str, Callable[[], object]] = {
    "Python's random numbers": random.random,
    "NumPy's random numbers": np.random.rand,
    TORCH: lambda: torch.rand(1),
}
OWN: dict[str, tuple[Callable[[int], Any], Callable[[Any], float]]] = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda own: float(torch.rand(1, generator=own))),
    "numpy": (np.random.default_rng, lambda own: own.random()),
    "numpy, philox": (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda own: own.random()),
    "numpy, legacy": (np.random.RandomState, lambda own: own.randn()),
    "python": (random.Random, lambda own: own.gauss(0, 1)),
}


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])
    random.setstate(before[2])


def test_one_module_reads_and_sets_them() -> None:
    users = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in READING:
                users.add(path.relative_to(SOURCE).as_posix())
    assert users == {"random_state.py"}


class TestFilesFromBefore:
    """What earlier versions wrote into checkpoints; it must be written and read as it was."""

    def test_what_is_written(self) -> None:
        np.random.seed(0)
        random.seed(0)
        fresh = {name: array_name(value) for name, value in random_tensors(CPU).items()}
        np.random.randn(3)
        random.gauss(0, 1)
        used = random_tensors(CPU)
        assert list(fresh) == ["torch", "numpy", "numpy_rest", "python", "python_rest"]
        assert fresh["numpy"] == "3f853df86f0b2cc1" and fresh["numpy_rest"] == "1a79536404323096"
        assert fresh["python"] == "3fed43c0605eaeec" and fresh["python_rest"] == "74999fd28ab18ccc"
        assert array_name(used["numpy"]) == "47f2a7ed4d0c7dd6" and array_name(used["numpy_rest"]) == "4539e92524d3cb07"
        assert (
            array_name(used["python"]) == "c0efd94ae0a0bea7" and array_name(used["python_rest"]) == "6d201d2a2a3350c3"
        )
        assert torch.equal(used["torch"], torch.get_rng_state())
        kinds = [torch.uint8, torch.int64, torch.float64, torch.int64, torch.float64]
        assert [value.dtype for value in used.values()] == kinds

    def test_what_is_read(self) -> None:
        """Half of a pair of normal numbers is kept by numpy and Python, and belongs to the state."""
        for source in (np.random.seed, random.seed):
            source(1)
        np.random.randn()
        random.gauss(0, 1)
        saved = random_tensors(CPU)
        expected = [(np.random.randn(), random.gauss(0, 1), float(torch.rand(1))) for _ in range(3)]
        set_random_tensors(saved, CPU)
        assert [(np.random.randn(), random.gauss(0, 1), float(torch.rand(1))) for _ in range(3)] == expected

    def test_sources_that_a_file_lacks_are_left_alone(self) -> None:
        saved = random_tensors(CPU)
        saved["cuda"] = torch.zeros(16, dtype=torch.uint8)  # of a run on a GPU, which goes on here
        del saved["numpy"], saved["numpy_rest"]
        np.random.seed(3)
        set_random_tensors(saved, CPU)
        assert np.random.rand() == np.random.RandomState(3).rand()


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_noticed_and_taken_back(name: str) -> None:
    before = get_random_state()
    first = DRAWS[name]()
    after = get_random_state()
    assert before.difference(after) == name and after.difference(get_random_state()) is None
    assert before.torch_differs(after) == (name == TORCH)
    set_random_state(before)
    assert before.difference(get_random_state()) is None
    assert DRAWS[name]() == first


@pytest.mark.parametrize("name", OWN)
def test_sources_of_somebodys_own(name: str) -> None:
    make, draw = OWN[name]
    source = make(5)
    draw(source)
    before, of_all = source_state(source), get_random_state(CPU, [source])
    first = draw(source)
    assert of_all.difference(get_random_state(CPU, [source])) == "random numbers of a generator of its own"
    set_source_state(source, before)
    assert draw(source) == first
    set_random_state(of_all, [source])
    assert draw(source) == first
    seed_source(source, 7)
    assert draw(source) == draw(make(7))


@pytest.mark.cuda
@pytest.mark.parametrize("device", [None, torch.device("cuda"), torch.device("cuda", 0)])
def test_on_a_gpu(device: torch.device | None) -> None:
    torch.rand(1, device="cuda")
    before = get_random_state(device)
    first = torch.rand(1, device="cuda")
    assert before.difference(get_random_state(device)) == TORCH
    set_random_state(before)
    assert torch.equal(torch.rand(1, device="cuda"), first)
    assert get_random_state(CPU).cuda == {}
