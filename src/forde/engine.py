"""Which engine runs a training: the plain step in a loop or stacked, compiled, and on several processes."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from torch import Tensor

from forde.arguments import Arguments, Input
from forde.compile import CompiledStep
from forde.compile.tracing import can_fuse
from forde.compile.worth import Worth, worth
from forde.distributed.mesh import ALONE, Axis, Mesh
from forde.double_backward import Policy
from forde.ensemble import Ensemble
from forde.errors import FordeError, first_line, unknown_name
from forde.methods.base import Method
from forde.step import AccumulatedStep, InspectedStep, MemberLoop, MemberStack, PlainStep, Runner, Step, inspect
from forde.step.accumulated import part_sizes
from forde.step.python_state import unstackable
from forde.step.records import Memory, Precision
from forde.step.sharded import ShardedStep, shard
from forde.step.stack import unknown_layer
from forde.torch_private import batch_norms_in

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
    example: tuple[Input, Tensor] | None = None,
    mesh: Mesh = ALONE,
    fuse: bool | None = None,
    accumulate: int = 1,
    repels_elsewhere: bool = False,
    independent: bool = False,
) -> Step:
    """The step asked for, or the fastest; one line in the log says which and why.

    `"auto"` stacks small perceptrons. Small networks in a class of the user's are stacked where the first step, made
    both ways on `example`, comes to the same. On a GPU it also compiles where that saves more time than it takes in a
    run of `steps`; it looks at a few plain steps first, and says what it decided. On a CPU it never asks the clock,
    because a run there must come to the same bits each time: it compiles small perceptrons where counts alone promise
    that it pays (`compile/worth.py`), which takes runs of tens of thousands of steps, and no convolutions.

    Args:
        steps: how many the run will have; without, a GPU compiles at any price and a CPU never.
        example: a batch as the run will see it, with targets.
        mesh: the processes that make the steps together.
        fuse: whether torch's compiler merges the operations of a compiled step; by default where it can.
        accumulate: in how many parts a batch is computed, with the gradient of the whole.
        repels_elsewhere: whether members are compared on other data than the batch, which is not compiled.
        independent: whether each member has batches of its own, which only a loop takes.
    """
    for what, given, known in (("engine", name, get_args(EngineName)), ("memory", memory, get_args(Memory))):
        if given not in known:
            raise unknown_name(what, given, known)
    if repels_elsewhere:
        _refuse_elsewhere(name, mesh, accumulate)
    own = ensemble if mesh is ALONE else _own_members(ensemble, mesh)
    steps, example = (steps, example) if accumulate == 1 else _in_parts(steps, example, accumulate)
    on_cpu, alone = ensemble.device.type == "cpu", mesh is ALONE
    uneven = _counts_unevenly(name, ensemble, method, accumulate)
    sharing = mesh.data if mesh.data.size > 1 else None
    loops = _only_looped(name, method, example, independent=independent)
    unfit = None if name == "vectorized" else loops or _unfit_to_stack(name, own, mesh, memory)
    if mesh.anywhere(unfit is not None):  # processes that share members add their gradients up, so these must be alike
        unfit = unfit or "those of another process cannot be stacked"
    pays: Worth | None = None
    if name == "auto" and on_cpu and alone and unfit is None and steps and example and can_fuse(ensemble.device):
        pays = worth(ensemble.members[0], ensemble.n_members, example[0], steps)
    possible = (
        loops is None
        and not (repels_elsewhere or uneven)
        and (pays is not None and pays.pays if on_cpu else can_fuse(ensemble.device))
    )
    compiles = name == "compiled" or (name == "auto" and possible)
    made: list[PlainStep] = []

    def make() -> None:
        runner: Runner
        if unfit is None:
            if name == "vectorized":
                _refuse_unfit_to_stack(own, memory, sharing)
            runner = MemberStack(own, method, precision, ensemble, sharing)
        else:
            runner = MemberLoop(own, method, precision, Policy(ensemble.device.type, processes=sharing), ensemble)
        made.append(PlainStep(runner, method, memory=memory, metric_apart=compiles))

    mesh.together(make)
    if not made[-1].runner.known and name != "vectorized":
        unfit = _unlike_a_loop(made[-1], example)
        if unfit is not None:
            compiles = compiles and (name == "compiled" or not on_cpu)
            make()
    plain = made[-1]
    step: Step = plain
    if compiles:
        rows = None
        if pays is not None and example is not None:
            log.info("engine: compiled, which takes about %.0f s and saves at least about %.0f s", *pays)
            rows = len(example[1])
        # Only whole steps of one process can be timed.
        timed = name == "auto" and pays is None and alone and accumulate == 1
        budget = steps if timed else None
        step = CompiledStep(plain, steps=budget, asked_for=name == "compiled", rows=rows, fuse=fuse, mesh=mesh)
    else:
        _say_why(plain, name, unfit, pays)
    return _wrapped(step, ensemble, mesh, accumulate)


def _say_why(plain: PlainStep, name: EngineName, unfit: str | None, pays: Worth | None) -> None:
    """One line about steps that are not compiled."""
    members = plain.runner.ensemble.n_members
    if not isinstance(plain.runner, MemberStack):
        log.info("engine: eager (a loop over %d members), because %s", members, unfit)
        return
    why = "that was asked for" if name == "vectorized" else "operations of small networks cost more than arithmetic"
    if pays is not None:
        why += f"; compiling would take about {pays.cost:.0f} s and save about {pays.saved:.0f} s"
    log.info("engine: vectorized (%d members stacked), because %s", members, why)


def _wrapped(step: Step, ensemble: Ensemble, mesh: Mesh, parts: int) -> Step:
    """The step of one process and one part of a batch, as that of whole batches and of all processes."""
    step = step if parts == 1 else AccumulatedStep(step, parts)
    if mesh is ALONE:
        return step
    log.info("engine: on %d × %d processes (shards of members × shards of the batch)", *mesh.shape)
    return ShardedStep(step, ensemble, mesh)


def _in_parts(
    steps: int | None, example: tuple[Input, Tensor] | None, parts: int
) -> tuple[int | None, tuple[Input, Tensor] | None]:
    """Steps and a batch as they are for a part."""
    if example is not None:
        rows = part_sizes(len(example[1]), parts)[0]
        example = example[0][:rows], example[1][:rows]
    return None if steps is None else steps * parts, example


def _counts_unevenly(name: EngineName, ensemble: Ensemble, method: Method, parts: int) -> bool:
    """Whether the parts of a batch count differently, its loss being divided by labels; refused where they may not."""
    if parts == 1 or ensemble.likelihood.adds_up:
        return False
    loss = f"the loss of {type(ensemble.likelihood).__name__} with class_weights or ignore_index"
    if name == "compiled":
        raise FordeError(
            f"{loss} is divided by the labels of the whole batch, so its parts count differently in every step, which "
            "engine='compiled' cannot run; use engine='eager', 'vectorized' or 'auto', or leave accumulate out."
        )
    of_loss = method.mixes_representations or (method.space is not None and method.space.needs_loss_gradient)
    if of_loss and method.repulsion_fraction < 1:
        raise FordeError(
            f"{loss} is divided by the labels of the whole batch, which a fraction of it has no part in; leave "
            "accumulate or repulsion_fraction out."
        )
    return True


def _refuse_elsewhere(name: EngineName, mesh: Mesh, parts: int) -> None:
    """Stop where steps would be made in a way that knows one batch only."""
    reasons = {
        "engine='compiled'": name == "compiled",
        "a mesh of processes": mesh is not ALONE,
        "accumulate": parts > 1,
    }
    for what, so in reasons.items():
        if so:
            raise FordeError(
                f"{what} knows no other data than the batch, which repel_on asks for; use engine='eager', 'vectorized' "
                "or 'auto', whole batches and one process, or leave repel_on out."
            )


def _own_members(ensemble: Ensemble, mesh: Mesh) -> Ensemble:
    """The members of this process; refused where it cannot take a part of the batch for a part of the loss."""
    if mesh.data.size > 1 and not ensemble.likelihood.adds_up:
        raise FordeError(
            f"the loss of {type(ensemble.likelihood).__name__} with class_weights or ignore_index is divided by the "
            "labels of the whole batch, which processes that share a batch do not know; use shards of members only."
        )
    return shard(ensemble, mesh.members.part(ensemble.n_members))


def _only_looped(
    name: EngineName, method: Method, example: tuple[Input, Tensor] | None, *, independent: bool
) -> str | None:
    """Why only a loop over members takes what it is given, in words; None where other engines do too."""
    if name == "eager":
        return None
    of = None if method.space is None else method.space.gradients_of
    reason = None if of is None else f"input gradients are taken of {of!r}"
    if example is not None and isinstance(example[0], Arguments):
        reason = "a batch has several inputs"
    if independent:
        reason = "each member has batches of its own (independent_data)"
    if reason is not None and name != "auto":
        raise FordeError(f"engine='{name}' cannot run this, because {reason}; use engine='eager' or 'auto'.")
    return reason


def _unfit_to_stack(name: EngineName, ensemble: Ensemble, mesh: Mesh, memory: Memory) -> str | None:
    """Why members are looped over, in words; None where they are small networks that can be stacked."""
    if name == "eager":
        return "that was asked for"
    if ensemble.n_members < 2:
        return "it is alone"
    if memory != "speed":
        return f"memory='{memory}' makes one member's forward pass after another"
    network = ensemble.members[0]
    unknown = unknown_layer(network, containers=False)
    if unknown is not None:
        return f"{type(unknown).__name__} layers are not stacked"
    if unknown_layer(network) is not None and (name == "compiled" or mesh is not ALONE):
        return "networks of other classes are stacked by engine='auto' in one process only"
    if sum(p.numel() for p in network.parameters()) > VECTORIZED_PARAMETERS:
        return f"networks of more than {VECTORIZED_PARAMETERS:,} parameters gain nothing when stacked"
    return unstackable(list(ensemble.members)) or (_normalises_over_batch(ensemble) if mesh.data.size > 1 else None)


def _refuse_unfit_to_stack(ensemble: Ensemble, memory: Memory, sharing: Axis | None) -> None:
    """Stop where stacking was asked for and would not do what else was asked for."""
    if memory != "speed":
        raise FordeError(
            f"engine='vectorized' runs all members at once, so memory='{memory}' saves nothing; use engine='eager', "
            "'compiled' or 'auto'."
        )
    if sharing is not None and (reason := _normalises_over_batch(ensemble)) is not None:
        raise FordeError(
            f"engine='vectorized' knows nothing of other processes' samples, but {reason}; use engine='eager', "
            "'compiled' or 'auto', or shards of members only."
        )


def _unlike_a_loop(step: PlainStep, example: tuple[Input, Tensor] | None) -> str | None:
    """Why stacked members whose class is not known are looped over after all; they are cut loose again."""
    reason: str | None = "whether their class can be stacked is seen on a batch only, and none was given"
    try:
        if example is not None:
            reason = step.unlike_a_loop(*example)
    except Exception as error:  # where the network is at fault, the first step of the loop says so
        reason = f"their first step failed ({first_line(error)})"
    finally:
        if reason is not None:
            step.close()
            step.runner.ensemble.zero_grad(set_to_none=True)
    return reason


def _normalises_over_batch(ensemble: Ensemble) -> str | None:
    """Where a layer's statistics are of the whole batch, which several processes hold together, in words."""
    found = batch_norms_in(ensemble.members[0])
    return f"BatchNorm ('{found[0]}') is over the batch that several processes share" if found else None


def inspect_step(
    ensemble: Ensemble,
    method: Method,
    x: Input,
    y: Tensor,
    *,
    engine: EngineName = "eager",
) -> InspectedStep:
    """Make a step without an optimizer, and tell what its three phases came to.

    Args:
        x: `[B, ...]`, or several such in one `Arguments`.
        y: `[B]`.

    >>> import torch
    >>> from torch import nn
    >>> from forde import method
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2).train()
    >>> found = inspect_step(ensemble, method("forde-identity"), torch.randn(8, 4), torch.randint(3, (8,)))
    >>> found.z.shape, sorted(found.of_repulsion[0])
    (torch.Size([2, 8, 4]), ['weight'])
    """
    step = make_engine(engine, ensemble, method, example=(x, y))
    try:
        return inspect(step, x, y)
    finally:
        step.close()
        ensemble.zero_grad(set_to_none=True)
