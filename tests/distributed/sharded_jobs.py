"""Jobs for the processes of a mesh: what each process does, and what it has to say afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sharded_cases import BATCH, STEPS, crash, data, ensemble, fit, resume, spoil_loss, spoiled, state_of, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.distributed.mesh import Mesh, joined
from forde.distributed.sharded import own_random_numbers
from forde.errors import RunInterruptedError
from forde.spaces import Outputs

Job = dict[str, Any]


def rank() -> int:
    return int(os.environ["RANK"])


def training(job: Job) -> dict[str, Any]:
    return train(job["method"], job["dtype"], job["option"], mesh=tuple(job["mesh"]))


class WrongAxis(Outputs):
    """One vector for the whole batch, but it says that samples are compared one by one."""

    sample_axis = 1  # type: ignore[assignment]


def wide(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(50, width), nn.Tanh(), nn.Linear(width, 3))


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "members": (
        lambda: fit(ensemble(members=3), mesh=(2, 2)),
        "3 members cannot be split over the 2 member shards of mesh 2x2; use mesh 1x4",
    ),
    "batch": (
        lambda: fit(ensemble(), batch_size=10, mesh=(1, 4)),
        "a batch of 10 samples cannot be split over the 4 data shards of mesh 1x4",
    ),
    "last batch": (
        lambda: fit(ensemble(), given=data(n=BATCH * STEPS + 3), drop_last=False, mesh=(2, 2)),
        "a batch of 3 samples cannot be split over the 2 data shards",
    ),
    "batch of a loader": (
        lambda: fit(ensemble(), given=DataLoader(TensorDataset(*data()), 7), mesh=(2, 2)),
        "a batch of 7 samples cannot be split",
    ),
    "part of a batch": (
        lambda: fit(ensemble(), "every second step on half of the batch", batch_size=4, mesh=(1, 4)),
        r"a part that repels (repulsion_fraction=0.5) of 2 samples cannot be split",
    ),
    "processes": (lambda: fit(ensemble(), mesh=(4, 2)), "mesh 4x2 needs 8 processes, but the number started is 4"),
    "shape": (lambda: fit(ensemble(), mesh=(4, 0)), "'auto' or (shards of members, shards of the batch)"),
    "engine": (lambda: fit(ensemble(), mesh="auto", engine="vectorized"), "engine='vectorized' does not run on"),
    "settings": (
        lambda: fit(ensemble(), mesh=(2, 2), lr=0.1 if rank() == 2 else 0.05),
        "training.optimizer.lr = ",
    ),
    "data": (
        lambda: fit(
            ensemble(), mesh=(2, 2), given=DataLoader(TensorDataset(data()[0], data()[1] % (3 - rank() % 2)), 8)
        ),
        "the processes drew different batches",
    ),
    "space": (
        lambda: forde.fit(
            ensemble(), forde.Method(space=WrongAxis()), data(), epochs=1, batch_size=8, progress=False, mesh=(2, 2)
        ),
        "WrongAxis has sample_axis = 1, but its z [2, 1, 12] does not hold 4 samples there",
    ),
    "sizes": (
        lambda: forde.fit(
            forde.Ensemble([partial(wide, width) for width in (4, 4, 5, 5)]),
            "weight-rde",
            data(torch.float32),
            epochs=1,
            batch_size=8,
            progress=False,
            mesh=(2, 2),
        ),
        "members 0 and 2 are compared by Weights as 219 and 273 numbers",
    ),
    "loss": (lambda: spoiled("loss", mesh=(2, 2), non_finite="stop"), "the loss of member 3 is nan at step 2"),
}


def mistake(job: Job) -> dict[str, Any]:
    try:
        MISTAKES[job["name"]][0]()
    except forde.FordeError as error:
        return {"message": str(error)}
    return {}


def skipping(job: Job) -> dict[str, Any]:
    return spoiled(job["what"], mesh=(2, 2))


def rolling_back(job: Job) -> dict[str, Any]:
    trained = ensemble()
    spoil_loss(trained, 3, 2)
    run = Path(job["run"])
    records = fit(
        trained, "deep-ensemble", run=run, checkpoint_minutes=0.0, non_finite="roll_back", mesh=(2, 2)
    ).records
    return {"records": records}


def crossing(job: Job) -> dict[str, Any]:
    """Leave a run on one mesh; go on with it on another."""
    run, dropout = Path(job["run"]), job["dropout"]
    if job["left_on"] is not None:
        crash(run, 7, mesh=tuple(job["left_on"]), dropout=dropout)
    return resume(run, mesh=tuple(job["resumed_on"]), dropout=dropout) if job["resumed_on"] is not None else {}


def whole(job: Job) -> dict[str, Any]:
    trained = ensemble(dropout=0.2)
    return {"records": fit(trained, mesh=(2, 2)).records, "state": state_of(trained)}


def stopped(job: Job) -> dict[str, Any]:
    """One process is told to end; all stop after the same step."""
    trained = ensemble()
    steps = iter(range(1000))
    if rank() == 2:
        trained.members[2].register_forward_hook(
            lambda *_: signal.raise_signal(signal.SIGTERM) if next(steps) == 6 else None
        )
    try:
        fit(trained, run=Path(job["run"]), checkpoint_minutes=None, mesh=(2, 2))
    except RunInterruptedError as error:
        return {"message": str(error), "code": error.exit_code}
    return {}


def drawing(job: Job) -> dict[str, Any]:
    torch.manual_seed(0)
    with joined((2, 2), torch.device("cpu")) as mesh:
        inside = [_draw(mesh, step) for step in (0, 1, 0)]
    return {"inside": inside, "outside": torch.rand(3)}


def _draw(mesh: Mesh, step: int) -> torch.Tensor:
    with own_random_numbers(mesh, step):
        return torch.rand(3)


RUNNERS: dict[str, Callable[[Job], dict[str, Any]]] = {
    runner.__name__: runner for runner in (training, mistake, skipping, rolling_back, crossing, whole, stopped, drawing)
}
