"""The repulsion alone: what members' input gradients cost to compare, without any network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from forde.benchmarks.directions import with_directions
from forde.benchmarks.rows import Row, ratio
from forde.benchmarks.timing import Run, arithmetic, time_jobs
from forde.methods import Method, method


def metrics(rank: int) -> dict[str, Method]:
    """FoRDE under each metric, by name.

    >>> list(metrics(rank=64))
    ['identity', 'PCA', 'tuned', 'PCA of rank 64']
    """
    return {
        "identity": method("forde-identity"),
        "PCA": method("forde-pca"),
        "tuned": method("forde-tuned"),
        f"PCA of rank {rank}": method("forde-pca", rank=rank),
    }


@contextmanager
def exchanging(recipe: Method, shape: tuple[int, int, int], device: torch.device) -> Iterator[Run]:
    """A call that turns random representations of this shape `[M, B, D]` into forces.

    >>> with exchanging(method("forde-pca"), (3, 4, 5), torch.device("cpu")) as run:
    ...     run().cotangent.shape
    torch.Size([3, 4, 5])
    """
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    z /= z.norm(dim=-1, keepdim=True)
    fitted = with_directions(recipe, shape[2], device)
    rule, kernel = fitted.rule, fitted.kernel
    assert rule is not None and kernel is not None
    with arithmetic("float32"):
        yield lambda: rule(kernel, z)


def measure(
    dimensions: Sequence[int], *, members: int, batch: int, rank: int, device: torch.device, repeats: int
) -> Iterator[list[Row]]:
    """All rows so far, after each measurement.

    >>> *_, rows = measure([6], members=3, batch=4, rank=2, device=torch.device("cpu"), repeats=2)
    >>> rows[0]["metric"], rows[0]["ratio_to_identity"], len(rows)
    ('identity', 1.0, 4)
    """
    rows: list[Row] = []
    for dimension in dimensions:
        recipes = metrics(rank)
        shape = (members, batch, dimension)
        timings = time_jobs([partial(exchanging, one, shape, device) for one in recipes.values()], device, repeats)
        identity: float | None = None
        for timing, name in zip(timings, recipes, strict=True):
            identity = timing.ms if name == "identity" else identity
            rows.append(
                {
                    "metric": name,
                    "dimension": dimension,
                    "members": members,
                    "batch": batch,
                    "precision": "float32",
                    "device": str(device),
                    "ms": timing.ms,
                    "ratio_to_identity": ratio(timing.ms, identity),
                    "peak_memory_gib": timing.peak_gib,
                    "reserved_gib": timing.reserved_gib,
                    "error": timing.error,
                }
            )
            yield list(rows)
