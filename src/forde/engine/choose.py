"""Which engine runs a training."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from forde.engine.base import Engine
from forde.engine.compiled import CompiledEngine, CompiledStackEngine, can_fuse
from forde.engine.eager import EagerEngine
from forde.engine.python_state import unstackable
from forde.engine.records import Memory, Precision
from forde.engine.vectorized import KNOWN_STACKED, VectorizedEngine
from forde.ensemble import Ensemble
from forde.errors import unknown_name
from forde.methods.base import Method

log = logging.getLogger(__name__)

EngineName = Literal["auto", "eager", "vectorized", "compiled"]

VECTORISED_PARAMETERS = 2_000_000
"""Above this size per member arithmetic dominates and stacking gains nothing."""


def make_engine(
    name: EngineName,
    ensemble: Ensemble,
    method: Method,
    precision: Precision = "float32",
    memory: Memory = "speed",
    *,
    steps: int | None = None,
) -> Engine:
    """The engine asked for, or the fastest.

    `"auto"` stacks small perceptrons. On a GPU it also compiles where that saves more time than it takes in a run of
    `steps`; it looks at a few plain steps first, and says what it decided.
    """
    if name not in (names := get_args(EngineName)):
        raise unknown_name("engine", name, names)
    if memory not in (memories := get_args(Memory)):
        raise unknown_name("memory", memory, memories)
    stackable = memory == "speed" and worth_stacking(ensemble)
    reason = unstackable(list(ensemble.members)) if stackable else None
    if reason is not None and name in ("auto", "compiled"):
        stackable = False
        log.info("engine: members are not stacked, because %s", reason)
    if name == "compiled" or (name == "auto" and ensemble.device.type == "cuda" and can_fuse(ensemble.device)):
        kind = CompiledStackEngine if stackable else CompiledEngine
        return kind(ensemble, method, precision, memory, steps=None if name == "compiled" else steps)
    if name == "vectorized" or (name == "auto" and stackable):
        log.info("engine: vectorized (%d members stacked)", ensemble.n_members)
        return VectorizedEngine(ensemble, method, precision, memory)
    log.info("engine: eager (a loop over %d members)", ensemble.n_members)
    return EagerEngine(ensemble, method, precision, memory)


def worth_stacking(ensemble: Ensemble) -> bool:
    """Whether the members are small multilayer perceptrons; `unstackable` says whether they can be stacked."""
    network = ensemble.members[0]
    return (
        ensemble.n_members > 1
        and all(type(module) in KNOWN_STACKED for module in network.modules())
        and sum(p.numel() for p in network.parameters()) <= VECTORISED_PARAMETERS
    )
