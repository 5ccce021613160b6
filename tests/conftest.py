"""Shared by all tests: GPU tests skip without a GPU, and torch uses one thread so that runs do not fight for cores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

torch.set_num_threads(1)
# scikit-learn's array-API check of the estimators runs only where this is set before scipy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")


LONG = (
    "tests/commands/test_tune.py::test_stopped_and_taken_up",
    "tests/distributed/test_elastic.py::test_killed_process",
    "tests/experiments/test_reproduce_command.py::test_killed_at_any_moment",
    "tests/hostile/test_fuzzing.py",
    "tests/reliability/test_kills.py",
    "tests/reliability/test_signals.py::TestCommandLine",
    "tests/test_cli.py::test_demo_prints_the_table_and_writes_the_figures",
    "tests/test_compiled.py::test_gradient_of_every_model",
    "tests/test_docs.py::test_blocks_run[several-gpus.md]",
    "tests/test_docs.py::test_blocks_run[toys.md]",
    "tests/test_docs.py::test_following_the_recipe_for_a_new_method",
    "tests/test_part_of_batch.py::test_all_engines_agree",
    "tests/test_toys.py::test_forde_is",
    "tests/zoo",
)
"""What takes longest, which `make test-long` runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker(pytest.mark.long)
    for item in items:
        if " at 0x" in item.nodeid:  # processes that share the tests would not know each other's
            raise pytest.UsageError(f"{item.nodeid} is named after a place in memory; give its parameters ids=[...].")
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and torch sees none")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def logits(request: pytest.FixtureRequest) -> torch.Tensor:
    """Random member logits `[M, N, C]`, sizes as the test module says."""
    sizes = request.module.M, request.module.N, request.module.C
    return 2 * torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def y(request: pytest.FixtureRequest) -> torch.Tensor:
    """Random labels `[N]`."""
    return torch.randint(request.module.C, (request.module.N,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium, one for all tests of a process, which can drive no second one; tests skip without."""
    playwright = pytest.importorskip("playwright.sync_api", reason="a browser is driven by playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium here")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
