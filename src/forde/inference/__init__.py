"""Outputs of networks that are no longer trained, at the speed of the device."""

from forde.inference.folding import folded
from forde.inference.fused import fused
from forde.inference.runner import SMALL_BATCH, running
from forde.inference.untouched import Untouched

__all__ = ["SMALL_BATCH", "Untouched", "folded", "fused", "running"]
