"""Page faults of a step on a CPU: `python benchmarks/page_faults.py`, with `--give-back` as glibc would have it.

Prints the mean over ten steps of ten small convolutional networks (`small-conv` of `forde bench`), after five others.
"""

from __future__ import annotations

import argparse
import resource

import torch

import forde
from forde.benchmarks.models import problem
from forde.engine import EagerEngine, base


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--give-back", action="store_true", help="do not keep freed memory")
if parser.parse_args().give_back:
    base.keep_freed_memory = lambda: None

torch.set_num_threads(1)
network = problem("small-conv")
x, y = network.batch(128, torch.device("cpu"))
for method in ("deep-ensemble", "forde-identity"):
    engine = EagerEngine(forde.Ensemble(network.make, 10).train(), forde.method(method))
    optimizer = torch.optim.SGD(engine.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    for _ in range(5):
        engine.update(x, y, optimizer)
    before = faults()
    for _ in range(10):
        engine.update(x, y, optimizer)
    print(f"{method}: {(faults() - before) / 10:.0f} page faults per step")
