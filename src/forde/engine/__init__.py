"""How a step is run: forward, exchange, pull back."""

from forde.engine.base import Engine
from forde.engine.choose import make_engine
from forde.engine.compiled import CompiledEngine, CompiledStackEngine
from forde.engine.eager import EagerEngine
from forde.engine.exchange import exchange
from forde.engine.inspecting import InspectedStep, inspect_step
from forde.engine.records import StepReport
from forde.engine.vectorized import VectorizedEngine

__all__ = [
    "CompiledEngine",
    "CompiledStackEngine",
    "EagerEngine",
    "Engine",
    "InspectedStep",
    "StepReport",
    "VectorizedEngine",
    "exchange",
    "inspect_step",
    "make_engine",
]
