"""Which engine runs a training: the plain step in a loop or stacked, compiled, and on several processes."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from torch import Tensor

from forde.compile import CompiledStep
from forde.compile.agreeing import together
from forde.compile.fusing import can_fuse
from forde.distributed.mesh import ALONE, Mesh
from forde.distributed.sharded import ShardedStep, shard
from forde.distributed.sums import SharingProcesses
from forde.double_backward import Policy
from forde.ensemble import Ensemble
from forde.errors import FordeError, unknown_name
from forde.methods.base import Method
from forde.step import InspectedStep, MemberLoop, MemberStack, PlainStep, Runner, Step, inspect
from forde.step.python_state import unstackable
from forde.step.records import Memory, Precision
from forde.step.runners import KNOWN_STACKED
from forde.torch_private import batch_norms

log = logging.getLogger(__name__)

EngineName = Literal["auto", "eager", "vectorized", "compiled"]

VECTORIZED_PARAMETERS = 2_000_000
"""Above this size per member arithmetic dominates and stacking gains nothing."""


def make_engine(
    name: EngineName,
    ensemble: Ensemble,
    method: Method,
    precision: Precision = "float32",
    memory: Memory = "speed",
    *,
    steps: int | None = None,
    mesh: Mesh = ALONE,
    fuse: bool | None = None,
) -> Step:
    """The step asked for, or the fastest.

    `"auto"` stacks small perceptrons. On a GPU it also compiles where that saves more time than it takes in a run of
    `steps`; it looks at a few plain steps first, and says what it decided.

    Args:
        steps: how many the run will have; None compiles at any price.
        mesh: the processes that make the steps together.
        fuse: whether torch's compiler merges the operations of a compiled step; by default where it can.
    """
    if name not in (names := get_args(EngineName)):
        raise unknown_name("engine", name, names)
    if memory not in (memories := get_args(Memory)):
        raise unknown_name("memory", memory, memories)
    own = ensemble if mesh is ALONE else shard(ensemble, mesh.members.part(ensemble.n_members))
    compiles = name == "compiled" or (name == "auto" and ensemble.device.type == "cuda" and can_fuse(ensemble.device))
    stacks = name == "vectorized" or (name != "eager" and memory == "speed" and _stacks(own, mesh))
    sharing = SharingProcesses(mesh.data) if mesh.data.size > 1 else None
    if mesh.anywhere(not stacks):  # processes that share members add their gradients up, so these must be alike
        stacks = False
    made: list[PlainStep] = []

    def make() -> None:
        runner: Runner
        if stacks:
            if name == "vectorized" and sharing is not None and (reason := _normalises_over_batch(own)) is not None:
                raise FordeError(
                    f"engine='vectorized' knows nothing of other processes' samples, but {reason}; use "
                    "engine='eager', 'compiled' or 'auto', or shards of members only."
                )
            runner = MemberStack(own, method, precision, ensemble, sharing)
        else:
            runner = MemberLoop(own, method, precision, Policy(ensemble.device.type, processes=sharing), ensemble)
        made.append(PlainStep(runner, method, memory=memory, metric_apart=compiles))

    together(None if mesh is ALONE else mesh, make)
    (plain,) = made
    step: Step = plain
    if compiles:
        budget = None if name == "compiled" or mesh is not ALONE else steps
        step = CompiledStep(plain, steps=budget, fuse=fuse, company=None if mesh is ALONE else mesh)
    elif stacks:
        log.info("engine: vectorized (%d members stacked)", own.n_members)
    else:
        log.info("engine: eager (a loop over %d members)", own.n_members)
    if mesh is ALONE:
        return step
    log.info("engine: on %d × %d processes (shards of members × shards of the batch)", *mesh.shape)
    return ShardedStep(step, ensemble, mesh)


def _stacks(ensemble: Ensemble, mesh: Mesh) -> bool:
    """Whether members are small multilayer perceptrons that can be stacked."""
    network = ensemble.members[0]
    if (
        ensemble.n_members < 2
        or not all(type(module) in KNOWN_STACKED for module in network.modules())
        or sum(p.numel() for p in network.parameters()) > VECTORIZED_PARAMETERS
    ):
        return False
    reason = unstackable(list(ensemble.members))
    if mesh.data.size > 1:
        reason = reason or _normalises_over_batch(ensemble)
    if reason is not None:
        log.info("engine: members are not stacked, because %s", reason)
    return reason is None


def _normalises_over_batch(ensemble: Ensemble) -> str | None:
    """Where a layer's statistics are of the whole batch, which several processes hold together, in words."""
    named = ensemble.members[0].named_modules()
    found = next((name for name, module in named if isinstance(module, batch_norms())), None)
    return None if found is None else f"BatchNorm ('{found}') is over the batch that several processes share"


def inspect_step(
    ensemble: Ensemble,
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    engine: EngineName = "eager",
    precision: Precision = "float32",
    memory: Memory = "speed",
    data_size: int | None = None,
) -> InspectedStep:
    """Make a step without an optimizer, and tell what its three phases came to.

    Args:
        x: `[B, ...]`.
        y: `[B]`.
        data_size: N; the batch size if left out.

    >>> import torch
    >>> from torch import nn
    >>> from forde import method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2).train()
    >>> found = inspect_step(ensemble, method("forde-identity"), torch.randn(8, 4), torch.randint(3, (8,)))
    >>> found.z.shape, sorted(found.of_repulsion[0])
    (torch.Size([2, 8, 4]), ['weight'])
    """
    step = make_engine(engine, ensemble, method, precision, memory)
    try:
        return inspect(step, x, y, data_size=data_size)
    finally:
        step.close()
        ensemble.zero_grad(set_to_none=True)
