"""The paper's tables and figures, and two of our own. Importing this package registers them all."""

from forde.experiments import plan, table_cifar10
from forde.experiments.budgets import BUDGETS, Budget, budget
from forde.experiments.cells import Cell
from forde.experiments.registry import Experiment, experiment, experiments, register

__all__ = [
    "BUDGETS",
    "Budget",
    "Cell",
    "Experiment",
    "budget",
    "experiment",
    "experiments",
    "register",
    "table_cifar10",
]
