"""Evaluation: metrics of class probabilities and of Gaussian mixtures, and robustness under corruption.

The classification metrics exist as `torchmetrics.Metric` classes too, in `forde.evaluation.torchmetrics_`.
"""

from forde.evaluation.calibration import adaptive_ece, classwise_ece
from forde.evaluation.diversity import disagreement, gradient_cosine_distance, uncertainty
from forde.evaluation.metrics import Reliability, accuracy, brier, ece, mixture, nll, nll_per_sample, reliability
from forde.evaluation.regression import (
    crps,
    gaussian_mixture_nll,
    interval_coverage,
    mixture_cdf,
    mixture_quantile,
    rmse,
)
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
from forde.evaluation.scores import score
from forde.evaluation.statistics import score_batches

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
