"""Whole trainings of small deep ensembles on a CPU: `forde.fit` against the same written by hand.

python -m forde.benchmarks.whole_runs --model toy-mlp,mlp --batch 64,128

All train 10 members from drawing batches to the last step, in one thread. `fit` also sets up and, after each epoch,
diagnoses; written by hand (`by_hand.py`) none of this is done. They take turns; printed is the CPU time per step of
each one's fastest run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from forde.benchmarks import by_hand
from forde.benchmarks.models import problem
from forde.ensemble import Ensemble
from forde.training import fit

SAMPLES, MEMBERS = 1024, 10


def trained_by_hand(
    make_step: Callable[..., by_hand.HandStep],
    ensemble: Ensemble,
    data: tuple[Tensor, Tensor],
    *,
    batch: int,
    epochs: int,
) -> None:
    """Train with batches in an order of their own in each epoch."""
    step, generator = make_step(list(ensemble.train().members)), torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = torch.randperm(len(data[1]), generator=generator)
        for chosen in order.split(batch):
            step(*(tensor[chosen] for tensor in data))


def trained_by_fit(
    ensemble: Ensemble, data: tuple[Tensor, Tensor], *, batch: int, epochs: int, diagnostics_every: int = 1
) -> None:
    """Train by the usual call."""
    fit(
        ensemble, "deep-ensemble", data, epochs=epochs, batch_size=batch, lr=by_hand.LR, verbose=False,
        diagnostics_every=diagnostics_every,
    )  # fmt: skip


WAYS: dict[str, Callable[..., None]] = {
    "fit": trained_by_fit,
    "without diagnostics": partial(trained_by_fit, diagnostics_every=0),
    "loop by hand": partial(trained_by_hand, by_hand.loop),
    "vmap by hand": partial(trained_by_hand, by_hand.vmap),
}


def measure(model: str, batch: int, *, epochs: int = 20, repeats: int = 5) -> dict[str, float]:
    """CPU milliseconds per step of each way, the least of some runs in turns.

    >>> sorted(measure("toy-mlp", 512, epochs=1, repeats=1))
    ['fit', 'loop by hand', 'vmap by hand', 'without diagnostics']
    """
    task = problem(model)
    data = task.batch(SAMPLES, torch.device("cpu"))
    found = dict.fromkeys(WAYS, float("inf"))
    for _ in range(repeats):
        for name, train in WAYS.items():
            ensemble = Ensemble(task.make, MEMBERS)
            started = time.process_time()
            train(ensemble, data, batch=batch, epochs=epochs)
            found[name] = min(found[name], 1e3 * (time.process_time() - started) / (epochs * SAMPLES // batch))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="toy-mlp,mlp", help="names, commas between")
    parser.add_argument("--batch", default="64,128", help="sizes, commas between")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("model batch " + "  ".join(WAYS))
    for model in options.model.split(","):
        for batch in map(int, options.batch.split(",")):
            times = measure(model, batch, epochs=options.epochs, repeats=options.repeats)
            print(f"{model} {batch}  " + "  ".join(f"{times[name]:.2f}" for name in WAYS), flush=True)


if __name__ == "__main__":
    main()
