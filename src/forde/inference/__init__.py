"""Outputs of networks that are no longer trained, at the speed of the device."""

from forde.inference.folding import folded
from forde.inference.fused import fused
from forde.inference.runner import running
from forde.inference.untouched import Untouched

__all__ = ["Untouched", "folded", "fused", "running"]
