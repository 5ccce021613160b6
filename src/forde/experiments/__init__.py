"""The paper's tables and figures, and two of our own. Importing this package registers them all."""

from forde.experiments import (
    cost,
    fig_1d,
    fig_2d,
    fig_alpha,
    fig_corruptions,
    fig_diversity,
    fig_empcov,
    fig_sizes,
    fig_transfer,
    frontier,
    plan,
    table_cifar10,
    table_cifar100,
    table_empcov,
    table_tinyimagenet,
    width,
)
from forde.experiments.registry import Experiment, experiment, experiments, register

__all__ = [
    "Experiment",
    "cost",
    "experiment",
    "experiments",
    "fig_1d",
    "fig_2d",
    "fig_alpha",
    "fig_corruptions",
    "fig_diversity",
    "fig_empcov",
    "fig_sizes",
    "fig_transfer",
    "frontier",
    "plan",
    "register",
    "table_cifar10",
    "table_cifar100",
    "table_empcov",
    "table_tinyimagenet",
    "width",
]
