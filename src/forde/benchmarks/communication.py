"""Time of the messages of a training step between local processes, against latency and bandwidth.

python -m forde.benchmarks.communication --processes 2,4
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from forde.distributed.mesh import Axis

NUMBERS = [2**k for k in (0, 4, 8, 10, 14, 16, 18, 20)]
"""Floats per process and message: 4 bytes to 4 MiB."""
SHORT, LONG = 2**10, 2**16
"""Messages up to the first give the latency, from the second on the bandwidth."""
WARM_UPS, REPEATS = 3, 25


def ring_bytes(kind: str, numbers: int, size: int) -> float:
    """What passes one process's link: all-gather of `numbers` floats of each, or all-reduce of as many."""
    return 4 * numbers * (size - 1) if kind == "gather" else 8 * numbers * (size - 1) / size


def messages(kind: str, axis: Axis, numbers: int) -> Callable[[], object]:
    tensor = torch.randn(numbers)
    return (lambda: axis.all_gather(tensor)) if kind == "gather" else (lambda: axis.all_reduce(tensor.zero_()))


def seconds(work: Callable[[], object]) -> float:
    """Median over repeats; all processes begin together."""
    times = []
    for _ in range(WARM_UPS + REPEATS):
        dist.barrier()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times[WARM_UPS:])


def fitted(rows: dict[int, tuple[float, float]]) -> tuple[float, float]:
    """Latency (s) and bandwidth (bytes/s) in time = latency + bytes/bandwidth, from (bytes, time) by message length."""
    latency = statistics.median(time_ for n, (_, time_) in rows.items() if n <= SHORT)
    return latency, statistics.median(v / max(time_ - latency, 1e-9) for n, (v, time_) in rows.items() if n >= LONG)


STEPS = {
    "forde-pca, 4 × MLP 784-256-256-10, batch 128": (128 * 784 * 4, 4 * 269_322),
    "function-rde, the same": (128 * 10 * 4, 4 * 269_322),
    "forde-pca, 4 × ResNet18, 32×32×3, batch 32": (32 * 3072 * 4, 4 * 11_173_962),
}
"""Floats of all representations (M·B·D) and of all members' gradients (M·P)."""


def measure(rank: int, size: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    axis = Axis(size, rank, dist.group.WORLD)
    model = {}
    for kind in ("gather", "reduce"):
        rows = {n: (ring_bytes(kind, n, size), seconds(messages(kind, axis, n))) for n in NUMBERS}
        model[kind] = fitted(rows)
        if rank == 0:
            latency, bandwidth = model[kind]
            print(f"{size} processes, all-{kind}: {1e3 * latency:.2f} ms per message, {bandwidth / 1e9:.2f} GB/s")
            for n, (volume, time_) in rows.items():
                predicted = latency + volume / bandwidth
                print(f"{4 * n:>12} bytes each: {1e3 * time_:8.2f} ms, model {1e3 * predicted:8.2f} ms")
    for name, (representations, gradients) in STEPS.items():
        for mesh, (kind, numbers) in {
            f"{size}x1": ("gather", representations // size),
            f"1x{size}": ("reduce", gradients),
        }.items():
            latency, bandwidth = model[kind]
            found, predicted = seconds(messages(kind, axis, numbers)), ring_bytes(kind, numbers, size) / bandwidth
            if rank == 0:
                what = "representations" if kind == "gather" else "gradients"
                print(
                    f"  {name}: {what} on {mesh}: {1e3 * found:.2f} ms, model {1e3 * (latency + predicted):.2f} ms "
                    f"({ring_bytes(kind, numbers, size) / 1e6:.2f} MB)"
                )
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="2,4")
    options = parser.parse_args(arguments)
    print(f"gloo, {os.cpu_count()}-core machine, torch {torch.__version__}")
    for size in (int(part) for part in options.processes.split(",")):
        meeting = Path(tempfile.mkdtemp()) / "meeting"
        mp.spawn(measure, args=(size, str(meeting)), nprocs=size)


if __name__ == "__main__":
    main()
