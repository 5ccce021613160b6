"""Cost of a training step: each method against the deep ensemble of the same engine, in one run.

python -m benchmarks.step [--members 10] [--batch 128] [--repeats 20]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

import forde
from forde.engine import EagerEngine, Engine, VectorizedEngine
from forde.priors import TrainingData

ENGINES: dict[str, type[Engine]] = {"eager": EagerEngine, "vectorized": VectorizedEngine}


def milliseconds(engine: Engine, x: torch.Tensor, y: torch.Tensor, repeats: int) -> float:
    """Median time of forward, exchange, pull back and optimiser."""
    optimizer = torch.optim.SGD(engine.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    times = []
    for step in range(repeats + 3):
        started = time.perf_counter()
        engine.step(x, y, step=step, data_size=50_000)
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    x, y = torch.randn(options.batch, 64), torch.randint(10, (options.batch,))
    table = Table(
        title=f"MLP 64-128-128-10, {options.members} members, batch {options.batch}, {torch.get_num_threads()} threads"
    )
    for column in ("method", "engine", "ms", "× deep ensemble", "eager / this"):
        table.add_column(column, justify="left" if column in ("method", "engine") else "right")
    found: dict[tuple[str, str], float] = {}
    for name in forde.methods():
        for label, kind in ENGINES.items():
            ensemble = forde.Ensemble(lambda: forde.models.MLP(64, [128, 128], 10), options.members).train()
            method = forde.method(name).prepare(ensemble.members[0], TrainingData(lambda: iter([x]), len(x)))
            engine = kind(ensemble, method)
            found[name, label] = milliseconds(engine, x, y, options.repeats)
            engine.close()
    for (name, label), ms in found.items():
        ratio, gain = ms / found["deep-ensemble", label], found[name, "eager"] / ms
        table.add_row(name, label, f"{ms:.1f}", f"{ratio:.2f}", f"{gain:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
