"""Evaluation: metrics of class probabilities and of Gaussian mixtures, and robustness under corruption.

The classification metrics exist as `torchmetrics.Metric` classes too, in `forde.evaluation.torchmetrics_`.
"""

from forde.evaluation.diversity import gradient_cosine_distance
from forde.evaluation.robustness import (
    Cell,
    CellDone,
    Comparison,
    Difference,
    Estimate,
    RobustnessResult,
    SavedCell,
    cells_from,
    compare_evaluations,
    evaluate_robustness,
    generated_cells,
    normalise,
    rescore,
    saved_evaluation,
)
from forde.metrics.calibration import adaptive_ece, classwise_ece
from forde.metrics.classification import Reliability, accuracy, brier, ece, mixture, nll, nll_per_sample, reliability
from forde.metrics.disagreement import disagreement, uncertainty
from forde.metrics.regression import (
    crps,
    gaussian_mixture_nll,
    interval_coverage,
    mixture_cdf,
    mixture_quantile,
    rmse,
)
from forde.metrics.scores import score
from forde.metrics.statistics import score_batches

__all__ = [
    "Cell",
    "CellDone",
    "Comparison",
    "Difference",
    "Estimate",
    "Reliability",
    "RobustnessResult",
    "SavedCell",
    "accuracy",
    "adaptive_ece",
    "brier",
    "cells_from",
    "classwise_ece",
    "compare_evaluations",
    "crps",
    "disagreement",
    "ece",
    "evaluate_robustness",
    "gaussian_mixture_nll",
    "generated_cells",
    "gradient_cosine_distance",
    "interval_coverage",
    "mixture",
    "mixture_cdf",
    "mixture_quantile",
    "nll",
    "nll_per_sample",
    "normalise",
    "reliability",
    "rescore",
    "rmse",
    "saved_evaluation",
    "score",
    "score_batches",
    "uncertainty",
]
