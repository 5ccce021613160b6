"""Shared by all tests: GPU tests skip without a GPU, and torch uses one thread so that runs do not fight for cores."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)
# scikit-learn's array-API check of the estimators runs only where this is set before scipy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
