"""Jobs for the processes of a mesh: what each process does, and what it has to say afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sharded_cases import (
    BATCH,
    STEPS,
    changed,
    crash,
    data,
    ensemble,
    fit,
    five_steps_on_gpu,
    resume,
    spoil_loss,
    spoiled,
    state_of,
    train,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import forde
import forde.compile.compiler
import forde.compile.step
from forde.benchmarks.listening import listening
from forde.compile import verifying
from forde.compile.captured import CudaGraphs
from forde.distributed.mesh import Mesh, joined
from forde.errors import RunInterruptedError
from forde.spaces import Outputs
from forde.step.sharded import own_random_numbers

Job = dict[str, Any]


def rank() -> int:
    return int(os.environ["RANK"])


def training(job: Job) -> dict[str, Any]:
    with listening() as said:
        found = train(
            job["method"], job["dtype"], job["option"], job["network"], mesh=tuple(job["mesh"]), engine=job["engine"]
        )
    return {**found, "said": said}


@contextmanager
def broken(name: str, function: Callable[..., Any], in_process: int) -> Iterator[None]:
    """In one process, another function stands in the place of one that compiled steps call."""
    module = verifying if name == "disagreement" else forde.compile.compiler
    before = getattr(module, name)
    if rank() == in_process:
        setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, before)


def failing(*_: object, **__: object) -> Any:
    raise RuntimeError("no such operation")


def refusing(*_: object, **__: object) -> Any:
    raise forde.FordeError("the forward pass gives something else each time")


def on_gpu(job: Job) -> dict[str, Any]:
    """Five steps in float32 on a GPU that all processes share, and how often a part of them was captured."""
    captures = 0
    capture = CudaGraphs.capture_phases

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal captures
        captures += 1
        return capture(*args, **kwargs)

    before = forde.compile.step.can_fuse
    forde.compile.step.can_fuse = lambda device: job["fuse"]
    CudaGraphs.capture_phases = counted  # type: ignore[method-assign]
    try:
        with listening() as said:
            state = five_steps_on_gpu(job["method"], job["network"], mesh=tuple(job["mesh"]))
    finally:
        forde.compile.step.can_fuse, CudaGraphs.capture_phases = before, capture  # type: ignore[method-assign]
    return {"state": state, "said": said, "captures": captures}


FALLBACKS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "the last process cannot trace": lambda: broken("trace", failing, 3),
    "the first process cannot trace": lambda: broken("trace", failing, 0),
    "the trace differs in one process": lambda: broken("disagreement", lambda *_, **__: "its loss differs", 2),
    "one process finds a side effect": lambda: broken("gross_disagreement", lambda *_, **__: "its gradient differs", 1),
}


def falling_back(job: Job) -> dict[str, Any]:
    """A step that is compiled in no process, because one cannot."""
    with listening() as said, FALLBACKS[job["name"]]():
        found = train("outputs", mesh=tuple(job["mesh"]), engine="compiled")
    return {**found, "said": said}


def hooked(job: Job) -> dict[str, Any]:
    """Code of the user's in one process only: no process stacks or compiles members."""
    trained = ensemble(network="perceptron")
    if rank() == 1:
        trained.members[0].register_forward_hook(lambda *_: None)
    with listening() as said:
        records = fit(trained, mesh=tuple(job["mesh"]), engine=job["engine"]).records
    return {"state": state_of(trained), "records": records, "said": said}


def changing(job: Job) -> dict[str, Any]:
    """Attributes change in mid-run, in the processes and members that are named."""
    members = range(*job["members"]) if rank() in job["in"] else range(0)
    with listening() as said:
        try:
            return {**changed(members, mesh=tuple(job["mesh"]), engine="compiled"), "said": said}
        except forde.FordeError as error:
            return {"message": str(error)}


class WrongAxis(Outputs):
    """One vector for the whole batch, but it says that samples are compared one by one."""

    sample_axis = 1  # type: ignore[assignment]


def wide(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(50, width), nn.Tanh(), nn.Linear(width, 3))


def unlike_in(process: int) -> forde.Ensemble:
    """One member has an attribute of its own, in one process only."""
    trained = ensemble(network="perceptron")
    trained.members[1].training_step = rank() == process
    trained.members[0].training_step = False
    return trained


def compile_where_one_refuses() -> None:
    with broken("refuse_unrepeatable", refusing, 2):
        fit(ensemble(), mesh=(2, 2), engine="compiled")


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
    "engine": (
        lambda: fit(ensemble(), mesh=(2, 2), engine="vectorized"),
        "engine='vectorized' knows nothing of other processes' samples, but BatchNorm ('norm') is over the batch",
    ),
    "engine, BatchNorm as a function": (
        lambda: fit(ensemble(network="functional"), mesh=(2, 2), engine="vectorized"),
        "BatchNorm is over the batch that several processes share",
    ),
    "engine, members that differ in one process": (
        lambda: fit(unlike_in(1), mesh=(2, 2), engine="vectorized"),
        "engine='vectorized' runs the first member's code for all, but",
    ),
    "compiling": (compile_where_one_refuses, "the forward pass gives something else each time"),
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
            ensemble(), forde.Method(space=WrongAxis()), data(), epochs=1, batch_size=8, verbose=False, mesh=(2, 2)
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
            verbose=False,
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
    run, how = Path(job["run"]), {name: job[name] for name in ("dropout", "network", "engine")}
    if job["left_on"] is not None:
        crash(run, 7, mesh=tuple(job["left_on"]), **how)
    return resume(run, mesh=tuple(job["resumed_on"]), **how) if job["resumed_on"] is not None else {}


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


def leaving(job: Job) -> dict[str, Any]:
    """Threads of this process after each of several meshes in a process group that is not forde's."""
    threads = []
    for _ in range(4):
        with joined((2, 2), torch.device("cpu")) as mesh:
            mesh.everyone.all_gather(torch.ones(3))
            mesh.data.all_gather(torch.ones(3))
        threads.append(len(list(Path("/proc/self/task").iterdir())))
    return {"threads": threads}


def drawing(job: Job) -> dict[str, Any]:
    torch.manual_seed(0)
    with joined((2, 2), torch.device("cpu")) as mesh:
        inside = [_draw(mesh, step) for step in (0, 1, 0)]
    return {"inside": inside, "outside": torch.rand(3)}


def _draw(mesh: Mesh, step: int) -> torch.Tensor:
    with own_random_numbers(mesh, step):
        return torch.rand(3)


RUNNERS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "training": training, "mistake": mistake, "skipping": skipping, "rolling_back": rolling_back, "crossing": crossing,
    "whole": whole, "stopped": stopped, "drawing": drawing, "falling_back": falling_back, "hooked": hooked,
    "changing": changing, "on_gpu": on_gpu, "leaving": leaving,
}  # fmt: skip
