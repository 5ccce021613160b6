"""Robustness under corruption: evaluate, keep the predictions, score them again, compare two evaluations."""

from forde.data.inputs import normalise
from forde.evaluation.robustness.cells import Cell, cells_from, generated_cells
from forde.evaluation.robustness.comparison import Comparison, Difference, compare_evaluations
from forde.evaluation.robustness.evaluate import CellDone, evaluate_robustness
from forde.evaluation.robustness.results import Estimate, RobustnessResult
from forde.evaluation.robustness.saved_cells import SavedCell
from forde.evaluation.robustness.saved_evaluations import rescore, saved_evaluation

__all__ = [
    "Cell",
    "CellDone",
    "Comparison",
    "Difference",
    "Estimate",
    "RobustnessResult",
    "SavedCell",
    "cells_from",
    "compare_evaluations",
    "evaluate_robustness",
    "generated_cells",
    "normalise",
    "rescore",
    "saved_evaluation",
]
