"""Time of one training batch from bytes on the device: order, crop, flip, normalise.

python -m forde.benchmarks.input_pipeline --device cuda
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from forde.training.image_feed import Augmentation, ImageFeed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (options.images, 32, 32, 3), dtype=np.uint8)
    feed = ImageFeed(
        images, np.arange(options.images) % 10, mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26),
        batch_size=options.batch, device=device, augmentation=Augmentation(),
    )  # fmt: skip

    def epoch(seed: int) -> tuple[float, float, int]:
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        batches = sum(1 for _ in feed.epoch(torch.Generator().manual_seed(seed)))
        issued = time.perf_counter() - started  # the host is done: nothing waited for the device
        if device.type == "cuda":
            torch.cuda.synchronize()
        return issued, time.perf_counter() - started, batches

    epoch(0)
    issued, done, batches = min(epoch(seed) for seed in range(1, 4))
    print(
        f"{options.images} images of 32×32 on {device}, batch {options.batch}: {1e3 * done / batches:.3f} ms per batch "
        f"({1e3 * issued / batches:.3f} ms of host time), {batches} batches, best of 3 epochs"
    )


if __name__ == "__main__":
    main()
