"""Evaluation of a folder that `forde train` wrote: scores, and members' predictions, kept beside the ensemble."""

from forde.evaluation.runs.comparison import compare_runs
from forde.evaluation.runs.evaluate import evaluate_run
from forde.evaluation.runs.scores_file import RunScores

__all__ = ["RunScores", "compare_runs", "evaluate_run"]
