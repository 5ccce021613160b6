"""Cost of a training step: each method against the deep ensemble of the same engine, in one run.

python -m benchmarks.step
python -m benchmarks.step --model resnet18 --device cuda --precision bf16 --methods deep-ensemble,forde-pca
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import forde
from forde.engine import EagerEngine, Engine, GraphedEngine, VectorizedEngine
from forde.models import MLP, preact_resnet18, resnet18, wrn16_4
from forde.priors import TrainingData

MODELS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "mlp": ((64,), lambda: MLP(64, [128, 128], 10)),
    "transfer-mlp": ((768,), lambda: MLP(768, [512, 512, 512], 10, batch_norm=True)),
    "small-conv": (
        (3, 16, 16),
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        ),
    ),
    "wrn16-4": ((3, 32, 32), lambda: wrn16_4(10)),
    "resnet18": ((3, 32, 32), lambda: resnet18(10)),
    "preact-resnet18": ((3, 64, 64), lambda: preact_resnet18(200)),
}  # fmt: skip


ENGINES: dict[str, type[Engine]] = {"eager": EagerEngine, "vectorized": VectorizedEngine, "graphed": GraphedEngine}


def milliseconds(engine: Engine, x: torch.Tensor, y: torch.Tensor, repeats: int) -> float:
    """Median time of forward, exchange, pull back and optimiser."""
    optimizer = torch.optim.SGD(engine.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    times = []
    for step in range(repeats + 3):
        started = time.perf_counter()
        engine.step(x, y, step=step, data_size=50_000)
        optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--methods", default="deep-ensemble,forde-identity,forde-pca")
    parser.add_argument("--engines", default="eager,vectorized")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    shape, make = MODELS[options.model]
    x = torch.randn(options.batch, *shape, device=options.device)
    y = torch.randint(10, (options.batch,), device=options.device)
    where = torch.cuda.get_device_name() if x.is_cuda else f"CPU, {torch.get_num_threads()} threads"
    table = Table(
        title=f"{options.model}, {options.members} members, batch {options.batch}, {options.precision}, {where}"
    )
    for column in ("method", "engine", "ms", "× deep ensemble", "GiB"):
        table.add_column(column, justify="left" if column in ("method", "engine") else "right")
    base: dict[str, float] = {}
    for name in options.methods.split(","):
        for label in options.engines.split(","):
            ensemble = forde.Ensemble(make, options.members).to(options.device).train()
            method = forde.method(name).prepare(ensemble.members[0], TrainingData(lambda: iter([x]), len(x)))
            if x.is_cuda:
                torch.cuda.reset_peak_memory_stats()
            engine = ENGINES[label](ensemble, method, options.precision)
            ms = milliseconds(engine, x, y, options.repeats)
            engine.close()
            base.setdefault(label, ms)
            memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if x.is_cuda else "–"
            table.add_row(name, label, f"{ms:.1f}", f"{ms / base[label]:.2f}", memory)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
