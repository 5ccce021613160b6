"""Whole trainings of heads that share one frozen backbone, against one head on features computed before it, on a CPU.

python -m forde.benchmarks.frozen_backbone --model resnet18 --methods deep-ensemble,forde --samples 2048 --epochs 10

`fit` with `backbone=` computes the features once and then trains all heads. One head is what one does without forde's
help: features of all samples in a loop over batches, then a training of one member on them. They take turns, in one
thread; printed is the CPU time of each one's fastest run, from images to the last step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from forde.benchmarks.models import problem
from forde.ensemble import Ensemble
from forde.training import fit

LR, ROWS = 0.01, 256
"""Learning rate, and samples that run through the backbone at once."""


@dataclass
class Fastest:
    """CPU seconds of the fastest run so far."""

    features: float = float("inf")
    """The backbone's features of all samples."""
    one_head: float = float("inf")
    """One head on features that are there."""
    heads: float = float("inf")
    """All heads, from images."""

    @property
    def ratio(self) -> float:
        """All heads over one, both from images."""
        return self.heads / (self.features + self.one_head)

    @property
    def ratio_of_heads(self) -> float:
        """The same without the features, which both compute once."""
        return (self.heads - self.features) / self.one_head


def body_and_width(network: nn.Module) -> tuple[nn.Module, int]:
    """A network without its last linear layer, and how many numbers that one took.

    >>> body_and_width(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))[1]
    8
    """
    if isinstance(network, nn.Sequential):
        return network[:-1], cast(nn.Linear, network[-1]).in_features
    width = cast(nn.Linear, network.head).in_features
    network.head = nn.Identity()
    return network, width


@torch.no_grad()
def features(body: nn.Module, x: Tensor) -> Tensor:
    """Of all samples, batch by batch: `[N, ...]` → `[N, Q]`."""
    return torch.cat([body(part) for part in x.split(ROWS)])


def measure(
    model: str, methods: Sequence[str], *, samples: int, members: int, batch: int, epochs: int, repeats: int
) -> dict[str, Fastest]:
    """By method, the least of some runs in turns.

    >>> found = measure("mlp", ["deep-ensemble"], samples=64, members=2, batch=32, epochs=1, repeats=1)
    >>> found["deep-ensemble"].ratio > 0
    True
    """
    task = problem(model)
    images = task.batch(samples, torch.device("cpu"))
    body, width = body_and_width(task.make().eval())

    def head() -> nn.Module:
        return nn.Linear(width, task.classes)

    def seconds(ensemble: Ensemble, method: str, data: tuple[Tensor, Tensor]) -> float:
        started = time.process_time()
        fit(ensemble, method, data, epochs=epochs, batch_size=batch, lr=LR, verbose=False)
        return time.process_time() - started

    found = {method: Fastest() for method in methods}
    for _ in range(repeats):
        for method, fastest in found.items():
            started = time.process_time()
            cached = features(body, images[0]), images[1]
            fastest.features = min(fastest.features, time.process_time() - started)
            fastest.one_head = min(fastest.one_head, seconds(Ensemble(head, 1), "deep-ensemble", cached))
            shared = Ensemble(head, members, backbone=body)
            fastest.heads = min(fastest.heads, seconds(shared, method, images))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="the backbone, without its last layer")
    parser.add_argument("--methods", default="deep-ensemble,forde", help="names, commas between")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = measure(
        options.model, options.methods.split(","), samples=options.samples, members=options.members,
        batch=options.batch, epochs=options.epochs, repeats=options.repeats,
    )  # fmt: skip
    print("method  features, s  one head on them, s  all heads, s  all / (features + one)  all / one without features")
    for method, each in found.items():
        times = f"{each.features:.2f}  {each.one_head:.2f}  {each.heads:.2f}"
        print(f"{method}  {times}  {each.ratio:.2f}  {each.ratio_of_heads:.1f}", flush=True)


if __name__ == "__main__":
    main()
