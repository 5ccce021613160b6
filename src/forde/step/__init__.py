"""One training step: forward, exchange, pull back."""

from forde.step.accumulated import AccumulatedStep
from forde.step.core import Step
from forde.step.inspecting import InspectedStep, inspect
from forde.step.plain import PlainStep
from forde.step.records import Batch, Forward, StepReport
from forde.step.runners import MemberLoop, Runner
from forde.step.stack import MemberStack

__all__ = [
    "AccumulatedStep",
    "Batch",
    "Forward",
    "InspectedStep",
    "MemberLoop",
    "MemberStack",
    "PlainStep",
    "Runner",
    "Step",
    "StepReport",
    "inspect",
]
