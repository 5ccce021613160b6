"""Page faults of a step on a CPU, with `--give-back` as glibc would have it.

python -m forde.benchmarks.page_faults --give-back

Prints the mean over ten steps of ten small convolutional networks (`small-conv` of `forde bench`), after five others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from forde.benchmarks.models import problem
from forde.engine import make_engine
from forde.ensemble import Ensemble
from forde.methods import method
from forde.step import plain


def faults() -> int:
    """Of this process so far, those that needed no disk."""
    import resource  # only where there is a Unix

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(name: str, *, members: int = 10, batch: int = 128, steps: int = 10) -> float:
    """Page faults per step of a method, after half as many steps."""
    network = problem("small-conv")
    x, y = network.batch(batch, torch.device("cpu"))
    engine = make_engine("eager", Ensemble(network.make, members).train(), method(name))
    optimizer = torch.optim.SGD(engine.runner.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    for _ in range(steps // 2):
        engine.update(x, y, optimizer)
    before = faults()
    for _ in range(steps):
        engine.update(x, y, optimizer)
    return (faults() - before) / steps


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--give-back", action="store_true", help="do not keep freed memory")
    if parser.parse_args(arguments).give_back:
        plain.keep_freed_memory = lambda: None
    torch.set_num_threads(1)
    for name in ("deep-ensemble", "forde-identity"):
        print(f"{name}: {measure(name):.0f} page faults per step")


if __name__ == "__main__":
    main()
