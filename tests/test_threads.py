"""What threads of one process build and train at the same time is what each gives alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde import turns
from forde.data.toys import regression_1d
from forde.models import MLP

T = TypeVar("T")
THREADS = 3
PATIENCE = 60
"""Seconds after which a test that should not wait is said to hang."""


def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Results of jobs that start at the same moment, one in each thread."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        barrier.wait(PATIENCE)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(run, job) for job in jobs]]


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    """Threads are switched so often that a missing lock shows in every run."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def weights(seed: int) -> list[Tensor]:
    def network() -> nn.Module:
        first = nn.Linear(8, 8)
        time.sleep(1e-4)  # where the other threads go on
        return nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))

    return [p.detach() for p in forde.Ensemble(network, 5, seed=seed).parameters()]


def test_ensembles_built_in_threads_have_the_weights_of_their_seed() -> None:
    alone = [weights(seed) for seed in range(THREADS)]
    for _ in range(3):
        found = together([lambda seed=seed: weights(seed) for seed in range(THREADS)])
        assert all(map(same, found, alone))


X = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 3


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def trained(seed: int, *, engine: str = "eager", loader: bool = False, **options: object) -> list[Tensor]:
    """Weights after a training whose dropout, and with a loader the order too, come from torch's global generator."""
    ensemble = forde.Ensemble(dropping, 2, seed=seed)
    data = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True) if loader else (X, Y)
    options = {"epochs": 4, "batch_size": 16, "verbose": False, "seed": seed, "engine": engine, **options}
    forde.fit(ensemble, "forde-identity", data, **options)  # type: ignore[arg-type]
    return [p.detach() for p in ensemble.parameters()]


@pytest.mark.parametrize(
    ("engine", "loader", "memory"),
    [("eager", False, "speed"), ("eager", True, "low"), ("vectorized", True, "speed")],
)
def test_fits_with_dropout_give_what_they_give_alone(engine: str, loader: bool, memory: str) -> None:
    def job(seed: int) -> list[Tensor]:
        return trained(seed, engine=engine, loader=loader, memory=memory)

    alone = [job(seed) for seed in range(THREADS)]
    assert all(map(same, together([lambda seed=seed: job(seed) for seed in range(THREADS)]), alone))


def test_numpy_draws_of_a_data_set_are_those_of_a_fit_alone() -> None:
    class Noisy(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(index)
            return x + torch.from_numpy(np.random.standard_normal(4)).float(), y

    def job(seed: int) -> list[Tensor]:
        ensemble = forde.Ensemble(dropping, 2, seed=seed)
        forde.fit(ensemble, "deep-ensemble", Noisy(X, Y), epochs=2, batch_size=16, verbose=False)
        return [p.detach() for p in ensemble.parameters()]

    alone = []
    for seed in range(THREADS):
        np.random.seed(0)
        alone.append(job(seed))
    np.random.seed(0)
    assert all(map(same, together([lambda seed=seed: job(seed) for seed in range(THREADS)]), alone))


def test_the_callers_random_numbers_go_on_as_if_nothing_had_run() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    together([lambda seed=seed: trained(seed, callback=lambda _: None) for seed in range(THREADS)])
    assert torch.equal(torch.rand(3), expected)


def test_estimators_in_joblibs_threads() -> None:
    joblib = pytest.importorskip("joblib")

    def probabilities(state: int) -> np.ndarray:
        estimator = forde.FordeClassifier(10, epochs=1, hidden=(64, 64), random_state=state)
        return estimator.fit(X.numpy(), Y.numpy()).predict_proba(X.numpy())

    alone = [probabilities(state) for state in range(THREADS)]
    found = joblib.Parallel(n_jobs=THREADS, backend="threading")(
        joblib.delayed(probabilities)(i % THREADS) for i in range(4 * THREADS)
    )
    assert all(np.array_equal(each, alone[i % THREADS]) for i, each in enumerate(found))


def test_a_fit_in_a_callback_of_the_same_thread() -> None:
    inner: list[list[Tensor]] = []

    def callback(_: object) -> None:
        inner.append(trained(1, epochs=1))

    expected = trained(0)
    assert same(together([lambda: trained(0, callback=callback)])[0], expected)
    assert all(same(each, trained(1, epochs=1)) for each in inner) and len(inner) == 4


def test_callbacks_may_wait_for_fits_in_other_threads() -> None:
    meeting = threading.Barrier(THREADS)
    alone = [trained(seed) for seed in range(THREADS)]
    found = together(
        [lambda seed=seed: trained(seed, callback=lambda _: meeting.wait(PATIENCE) and None) for seed in range(THREADS)]
    )
    assert all(map(same, found, alone))


def test_a_callback_may_wait_for_a_thread_of_its_own() -> None:
    inside: list[list[Tensor]] = []

    def callback(_: object) -> None:
        inside.extend(together([lambda: trained(1, epochs=1)]))

    expected = trained(0)
    assert same(together([lambda: trained(0, callback=callback)])[0], expected)
    assert len(inside) == 4


def test_an_ensemble_is_built_between_the_steps_of_a_long_fit() -> None:
    """Building waits for a step of the training in the other thread, and not for all of it."""
    started, built = threading.Event(), threading.Event()
    found: list[list[Tensor]] = []

    class Marking(TensorDataset):
        steps_after = 0

        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            started.set()
            self.steps_after += built.is_set()
            return super().__getitem__(index)

    def build() -> None:
        assert started.wait(PATIENCE)
        found.append(weights(3))
        built.set()

    data = Marking(X, Y)
    ensemble = forde.Ensemble(dropping, 2)
    together([lambda: forde.fit(ensemble, "lit", data, epochs=10, batch_size=1, verbose=False), build])
    assert data.steps_after > 0
    assert same(found[0], weights(3))
    alone = forde.Ensemble(dropping, 2)
    forde.fit(alone, "lit", TensorDataset(X, Y), epochs=10, batch_size=1, verbose=False)
    assert same(list(ensemble.parameters()), list(alone.parameters()))


def test_a_failed_fit_leaves_the_turn_to_others() -> None:
    def fail(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(0, callback=fail)
    with pytest.raises(forde.FordeError):
        trained(0, lr=float("nan"))
    assert same(together([lambda: trained(0)])[0], trained(0))


def test_waiting_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forde.turns")
    with turns.turn("fit"):
        waiting = threading.Thread(target=weights, args=(0,))
        waiting.start()
        while not turns._turns.queue:
            time.sleep(1e-3)
        turns.give_way()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert [record.getMessage() for record in caplog.records if record.name == "forde.turns"] == [
        "ensemble: another thread builds or trains networks; they take turns"
    ]
    trained(0)
    assert len([record for record in caplog.records if record.name == "forde.turns"]) == 1


def test_forked_processes_wait_for_no_thread_of_their_parent() -> None:
    """A DataLoader's worker may build a network while a thread of the parent process trains one."""

    class Building(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            return weights(index)[0], self.tensors[1][index]

    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.turn("fit"):
            holding.set()
            done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(PATIENCE)
    try:
        loader = DataLoader(Building(X, Y), batch_size=2, num_workers=1, timeout=30, multiprocessing_context="fork")
        first = next(iter(loader))[0]
    finally:
        done.set()
        holder.join(PATIENCE)
    assert torch.equal(first[1], weights(1)[0])


def test_what_the_package_builds_itself_is_reproducible() -> None:
    """Its models draw their weights in place, and a toy data set is made by such a network."""
    make: list[Callable[[], Tensor]] = [
        lambda seed=seed: forde.Ensemble(lambda: MLP(4, [64, 64], 3), 4, seed=seed)(X).detach() for seed in range(3)
    ]
    make += [lambda seed=seed: regression_1d(seed).y for seed in range(3)]
    alone = [job() for job in make]
    for _ in range(3):
        assert all(map(torch.equal, together(make), alone))
