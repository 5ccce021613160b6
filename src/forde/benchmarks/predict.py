"""Speed of `Ensemble.predict`, in images per second and member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from forde.benchmarks.models import problem
from forde.benchmarks.rows import Row
from forde.benchmarks.timing import PRECISIONS, Run, arithmetic, checked_device, time_jobs
from forde.ensemble import Ensemble
from forde.errors import unknown_name


@dataclass(frozen=True)
class Predicting:
    """One thing to time."""

    model: str = "mlp"
    members: int = 10
    batch: int = 512
    images: int = 10_000
    precision: str = "float32"
    device: str = "cpu"
    size: int | None = None


def predictions(
    models: Sequence[str],
    precisions: Sequence[str],
    *,
    members: Sequence[int] = (10,),
    batches: Sequence[int] = (512,),
    images: int = 10_000,
    device: str = "cpu",
    size: int | None = None,
) -> list[Predicting]:
    """All combinations, checked.

    >>> [one.precision for one in predictions(["mlp"], ["float32", "bf16"])]
    ['float32', 'bf16']
    """
    checked_device(device, precisions)
    for precision in precisions:
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
    for model in models:
        problem(model, size)
    return [
        Predicting(model, m, b, images, precision, device, size)
        for model, m, b, precision in product(models, members, batches, precisions)
    ]


@contextmanager
def predicting(what: Predicting) -> Iterator[Run]:
    """A call that predicts all images once; they are floats and lie on the device already.

    >>> with predicting(Predicting(members=2, images=8)) as run:
    ...     run().probs.shape
    torch.Size([8, 10])
    """
    device, task = torch.device(what.device), problem(what.model, what.size)
    with arithmetic(what.precision) as precision:
        x, _ = task.batch(what.images, device)
        ensemble = Ensemble(task.make, what.members).to(device)
        options: dict[str, Any] = {"batch_size": what.batch}
        if precision != "float32":
            options["precision"] = precision
        yield lambda: ensemble.predict(x, **options)


def measure(wanted: Sequence[Predicting], repeats: int) -> Iterator[list[Row]]:
    """All rows so far, after each measurement.

    >>> *_, rows = measure([Predicting(members=2, images=8)], repeats=2)
    >>> rows[0]["member_images_per_second"] > 0
    True
    """
    if not wanted:
        return
    rows: list[Row] = []
    timings = time_jobs([partial(predicting, what) for what in wanted], torch.device(wanted[0].device), repeats)
    for timing, what in zip(timings, wanted, strict=True):
        rows.append(
            {
                "model": what.model,
                "members": what.members,
                "batch": what.batch,
                "images": what.images,
                "size": problem(what.model, what.size).size,
                "precision": what.precision,
                "device": what.device,
                "ms": timing.ms,
                "member_images_per_second": None if timing.ms is None else 1e3 * what.members * what.images / timing.ms,
                "peak_memory_gib": timing.peak_gib,
                "reserved_gib": timing.reserved_gib,
                "first_call_s": timing.first_s,
                "error": timing.error,
            }
        )
        yield list(rows)
