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
