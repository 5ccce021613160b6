"""All 60,000 images of CIFAR-10 as Parquet files, where a developer has them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import forde.data
from forde.data.checks import channel_statistics

FOLDER = Path(os.environ.get("FORDE_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.mark.slow
@pytest.mark.skipif(
    not list(FOLDER.glob("cifar10/*.parquet")), reason="needs the Parquet files of CIFAR-10 in FORDE_DATA"
)
def test_cifar10_loads_quickly_and_looks_like_cifar10() -> None:
    start, cpu_start = time.perf_counter(), time.process_time()
    train, test = (forde.data.load_images("cifar10", split, FOLDER) for split in ("train", "test"))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    print(f"60,000 images in {seconds:.1f} s, {cpu_seconds:.1f} s of them on the processor")
    assert cpu_seconds < 15  # unlike the clock's, these do not count other programs on the machine
    assert np.bincount(train.labels).tolist() == [5_000] * 10 and np.bincount(test.labels).tolist() == [1_000] * 10
    mean, std = channel_statistics(train.images)
    assert mean == pytest.approx(train.description.mean, abs=0.002)
    assert std == pytest.approx(train.description.std, abs=0.005)
