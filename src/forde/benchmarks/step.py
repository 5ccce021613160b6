"""Cost of a training step: each method against the deep ensemble of the same engine and against the naive loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby, product
from typing import Any, NamedTuple, cast, get_args

import torch

from forde.benchmarks import by_hand
from forde.benchmarks.directions import has_directions, with_directions
from forde.benchmarks.models import problem
from forde.benchmarks.rows import Row, ratio
from forde.benchmarks.timing import PRECISIONS, Run, Timing, arithmetic, checked_device, time_jobs
from forde.distributed.mesh import ALONE, Mesh
from forde.engine import EngineName, make_engine
from forde.ensemble import Ensemble
from forde.errors import FordeError, unknown_name
from forde.methods import Method, method
from forde.priors import TrainingData
from forde.step import Step as ForwardBack
from forde.step.records import Memory

BY_HAND = {"loop-by-hand": by_hand.loop, "vmap-by-hand": by_hand.vmap}
"""Deep ensembles written without forde, in the place of an engine."""
ENGINES: tuple[str, ...] = (*get_args(EngineName), *BY_HAND)
MEMORIES: tuple[str, ...] = get_args(Memory)
DATA_SIZE = 50_000
"""N of CIFAR; it scales the repulsion and changes no time."""
WORTH_COMPARING = {"cpu": ("eager", "vectorized"), "cuda": ("eager", "compiled")}
"""Engines on a device."""


def default_engines(device: str) -> list[str]:
    """The engines that are worth comparing on a device.

    >>> default_engines("cuda:1")
    ['eager', 'compiled']
    """
    return list(WORTH_COMPARING.get(device.partition(":")[0], ("eager",)))


@dataclass(frozen=True)
class Step:
    """One thing to time: what is trained, and how."""

    method: str
    engine: str = "eager"
    model: str = "mlp"
    members: int = 10
    batch: int = 128
    precision: str = "float32"
    memory: str = "speed"
    device: str = "cpu"
    size: int | None = None
    every: int = 1
    fraction: float = 1.0
    rank: int | None = None

    @property
    def label(self) -> str:
        """The method with what is unusual about its repulsion.

        >>> Step("forde-pca", every=4).label
        'forde-pca every=4'
        """
        every = f" every={self.every}" if self.every != 1 else ""
        fraction = f" fraction={self.fraction:g}" if self.fraction != 1 else ""
        rank = "" if self.rank is None else f" rank={self.rank}"
        return self.method + every + fraction + rank

    @property
    def deep_ensemble(self) -> Step:
        """The same engine without repulsion; no graph then waits for other members, so `memory` changes nothing."""
        return replace(self, method="deep-ensemble", memory="speed", every=1, fraction=1.0, rank=None)

    @property
    def naive(self) -> Step:
        """The same method in a plain loop over members."""
        return replace(self, engine="eager", memory="speed")

    def build_method(self) -> Method:
        """The method, not yet fitted to inputs."""
        rank: dict[str, Any] = {} if self.rank is None else {"rank": self.rank}
        return method(self.method, repulsion_every=self.every, repulsion_fraction=self.fraction, **rank)

    def check(self) -> None:
        """Refuse names and numbers that cannot be run, before anything is."""
        for kind, name, known in (
            ("engine", self.engine, ENGINES),
            ("precision", self.precision, PRECISIONS),
            ("memory", self.memory, MEMORIES),
        ):
            if name not in known:
                raise unknown_name(kind, name, known)
        problem(self.model, self.size)
        self.build_method()
        if self.engine in BY_HAND and self.precision == "bf16":
            raise FordeError(f"'{self.engine}' is written for float32 only; leave it out, or precision bf16.")
        checked_device(self.device, [self.precision])
        if min(self.members, self.batch) < 1:
            raise FordeError(
                f"{self.members} members and a batch of {self.batch} were asked for, but at least 1 of each is needed."
            )


def steps(
    methods: Sequence[str],
    engines: Sequence[str],
    *,
    models: Sequence[str] = ("mlp",),
    members: Sequence[int] = (10,),
    batches: Sequence[int] = (128,),
    precisions: Sequence[str] = ("float32",),
    memories: Sequence[str] = ("speed",),
    every: Sequence[int] = (),
    fractions: Sequence[float] = (),
    ranks: Sequence[int] = (),
    device: str = "cpu",
    size: int | None = None,
) -> list[Step]:
    """All combinations, checked, and beside them the deep ensembles and naive loops that they are compared with.

    Args:
        every: each value adds a variant of each method that repels, which repels in every k-th step.
        fractions: likewise, which repels on a share of the batch.
        ranks: each adds a variant of each method with a PCA metric, which keeps so many directions.

    >>> [(step.label, step.engine) for step in steps(["forde-pca"], ["vectorized"], every=[4])][-2:]
    [('forde-pca every=4', 'eager'), ('forde-pca every=4', 'vectorized')]
    """
    found: dict[Step, None] = {}
    for model, m, b, precision in product(models, members, batches, precisions):
        for name, engine, memory in product(methods, engines, memories):
            plain = Step(name, engine, model, m, b, precision, memory, device, size)
            plain.check()
            if engine in BY_HAND:  # without forde there is the deep ensemble only
                plain = plain.deep_ensemble
            repels = plain.build_method().space is not None
            variants = [plain if repels else replace(plain, memory="speed")]
            if repels:
                variants += [replace(plain, every=k) for k in every]
                variants += [replace(plain, fraction=fraction) for fraction in fractions]
            if has_directions(plain.build_method()):
                variants += [replace(plain, rank=rank) for rank in ranks]
            for one in variants:
                one.check()
                found.update(dict.fromkeys([one.deep_ensemble.naive, one.deep_ensemble, one.naive, one]))
    return list(found)


class Training(NamedTuple):
    """A step that is ready to be made again and again."""

    engine: ForwardBack
    run: Run
    """Trains for one step, or through one cycle of k steps where members repel in every k-th."""


@contextmanager
def prepared(step: Step, mesh: Mesh = ALONE) -> Iterator[Training]:
    """What is trained, and a call that trains it.

    Args:
        mesh: the processes that make the step together.
    """
    device, task = torch.device(step.device), problem(step.model, step.size)
    with arithmetic(step.precision) as precision:
        x, y = task.batch(step.batch, device)
        ensemble = Ensemble(task.make, step.members).to(device).train()
        fitted = with_directions(step.build_method(), task.n_inputs, device).prepare(
            ensemble.members[0], TrainingData(lambda: iter([x]), DATA_SIZE)
        )
        engine = make_engine(
            cast(EngineName, step.engine), ensemble, fitted, precision, cast(Memory, step.memory), mesh=mesh
        )
        try:
            optimizer = torch.optim.SGD(engine.runner.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
            counter = count()

            def run() -> None:
                for _ in range(step.every):
                    engine.update(x, y, optimizer, step=next(counter), epoch=0, data_size=DATA_SIZE)

            yield Training(engine, run)
        finally:
            engine.close()


@contextmanager
def training(step: Step) -> Iterator[Run]:
    """A call that trains for one step, or through one cycle of k steps where members repel in every k-th.

    >>> with training(Step("forde-pca", members=2, batch=4)) as run:
    ...     run()
    """
    if step.engine not in BY_HAND:
        with prepared(step) as found:
            yield found.run
        return
    device, task = torch.device(step.device), problem(step.model, step.size)
    with arithmetic(step.precision):
        x, y = task.batch(step.batch, device)
        yield partial(BY_HAND[step.engine](list(Ensemble(task.make, step.members).to(device).train().members)), x, y)


def time_together(together: Sequence[Step], repeats: int) -> Iterator[tuple[Step, Timing]]:
    """Each with its time per step; on a CPU they take turns. All are on one device.

    >>> timed = dict(time_together([Step("deep-ensemble", members=2, batch=4)], repeats=2))
    >>> [timing.ms > 0 for timing in timed.values()]
    [True]
    """
    jobs = [partial(training, step) for step in together]
    for timing, step in zip(time_jobs(jobs, torch.device(together[0].device), repeats), together, strict=True):
        yield step, timing if timing.ms is None else replace(timing, ms=timing.ms / step.every)


def measure(wanted: Sequence[Step], repeats: int) -> Iterator[list[Row]]:
    """All rows so far, after each measurement.

    >>> *_, rows = measure(steps(["deep-ensemble"], ["eager"], members=[2], batches=[4]), repeats=2)
    >>> rows[0]["method"], rows[0]["ratio_to_deep_ensemble"], rows[0]["speedup_over_naive"]
    ('deep-ensemble', 1.0, 1.0)
    """
    timed: dict[Step, Timing] = {}
    # Only what is compared is alive at the same time.
    for _, group in groupby(wanted, lambda step: (step.model, step.members, step.batch, step.precision)):
        for step, timing in time_together(list(group), repeats):
            timed[step] = timing
            yield rows_of(timed)


def rows_of(timed: Mapping[Step, Timing]) -> list[Row]:
    """One row for each step, compared with those of the others that it is measured against.

    >>> plain = Step("deep-ensemble")
    >>> slow, fast = Step("forde-pca"), Step("forde-pca", engine="vectorized")
    >>> rows = rows_of({plain: Timing(ms=2.0), slow: Timing(ms=8.0), fast: Timing(ms=1.0)})
    >>> [(row["ratio_to_deep_ensemble"], row["speedup_over_naive"]) for row in rows]
    [(1.0, 1.0), (4.0, 1.0), (None, 8.0)]
    """

    def ms(step: Step) -> float | None:
        return timed[step].ms if step in timed else None

    return [
        {
            "method": step.label,
            "engine": step.engine,
            "model": step.model,
            "members": step.members,
            "batch": step.batch,
            "size": problem(step.model, step.size).size,
            "precision": step.precision,
            "memory": step.memory,
            "device": step.device,
            "ms": timing.ms,
            "ratio_to_deep_ensemble": ratio(timing.ms, ms(step.deep_ensemble)),
            "speedup_over_naive": ratio(ms(step.naive), timing.ms),
            "peak_memory_gib": timing.peak_gib,
            "reserved_gib": timing.reserved_gib,
            "first_step_s": timing.first_s,
            "note": timing.note,
            "error": timing.error,
        }
        for step, timing in timed.items()
    ]
