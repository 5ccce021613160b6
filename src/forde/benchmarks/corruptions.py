"""How fast each corruption is: images per second, random numbers included."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from forde.corruptions import NAMES, SEVERITIES, corrupt, corrupt_all


class Speed(NamedTuple):
    """Images per second of one corruption, over the five severities together."""

    name: str
    images_per_second: float


def benchmark_images(n: int = 1024, side: int = 32) -> np.ndarray:
    """Smooth random colour images, uint8 (n, side, side, 3), that stand in for photographs."""
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side))
    frequency[0, 0] = 1 / side
    spectrum = np.fft.rfft2(rng.standard_normal((n, 3, side, side))) / frequency
    field = np.fft.irfft2(spectrum, s=(side, side)).transpose(0, 2, 3, 1)
    return np.clip(120 + 60 * field / field.std(), 0, 255).astype(np.uint8, order="C")


def measure(
    names: Iterable[str] = NAMES, images: np.ndarray | None = None, repeats: int = 3
) -> tuple[list[Speed], float]:
    """Speed of each corruption on one thread, best of repeats, and the seconds of all names over 5 x 10,000 images.

    Tables and frost textures are made before the clock starts.

    >>> speeds, seconds = measure(["contrast"], repeats=1)
    >>> speeds[0].name
    'contrast'
    """
    batch = benchmark_images() if images is None else images
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = {name: sum(_best(batch, name, s, repeats) for s in SEVERITIES) / len(SEVERITIES) for name in names}
    finally:
        torch.set_num_threads(threads)
    speeds = [Speed(name, len(batch) / taken) for name, taken in seconds.items()]
    return speeds, sum(50_000 / speed.images_per_second for speed in speeds)


def whole_set_seconds(n: int = 10_000, *, workers: int = 1, device: str = "cpu") -> float:
    """Seconds to make all 19 corruptions at all 5 severities of n images with corrupt_all, once, after a warm-up."""
    images = torch.from_numpy(benchmark_images(n)).to(device)
    for _ in corrupt_all(images[:256], workers=workers):
        pass
    start = time.perf_counter()
    for _ in corrupt_all(images, workers=workers):
        pass
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _best(images: np.ndarray, name: str, severity: int, repeats: int) -> float:
    """Seconds of the fastest of some runs, after one that is not timed."""
    corrupt(images[:256], name, severity)
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        corrupt(images, name, severity)
        taken.append(time.perf_counter() - start)
    return min(taken)
