"""Tuning: strength and α by a validation split, under perturbations that are none of the test corruptions."""

from forde.tuning.tune import Tuning, tune

__all__ = ["Tuning", "tune"]
