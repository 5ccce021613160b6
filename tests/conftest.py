"""Shared by all tests: GPU tests skip without a GPU, and torch uses one thread so that runs do not fight for cores."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and torch sees none")
    for item in items:
        if "cuda" in item.keywords:
            item.add_marker(skip)
