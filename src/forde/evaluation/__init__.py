"""Evaluation: metrics of class probabilities."""

from forde.evaluation.metrics import Reliability, accuracy, brier, ece, mixture, nll, nll_per_sample, reliability

__all__ = ["Reliability", "accuracy", "brier", "ece", "mixture", "nll", "nll_per_sample", "reliability"]
