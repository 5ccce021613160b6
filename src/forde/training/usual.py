"""Optimizers by name, with the learning rate and the schedule that the command line gives them."""

from __future__ import annotations

from typing import Any

from forde.errors import unknown_name
from forde.methods import Method
from forde.training.schedule import method_factor

RATES = {"sgd": 0.1, "adam": 0.003}
"""Learning rate of each: SGD with Nesterov momentum 0.9, and Adam."""


def usual_optimizer(n_classes: int) -> str:
    """SGD for classes, and Adam for a quantity: the loss of a mean and a variance has no curvature that one rate suits.

    >>> usual_optimizer(10), usual_optimizer(0)
    ('sgd', 'adam')
    """
    return "sgd" if n_classes else "adam"


def optimizer_options(name: str, lr: float, epochs: int, method: Method) -> dict[str, Any]:
    """What to give `fit` for an optimizer by name; its rate falls as the method has it, with Adam too.

    >>> from forde import method
    >>> optimizer_options("sgd", 0.1, 20, method("deep-ensemble"))
    {'lr': 0.1}
    """
    if name not in RATES:
        raise unknown_name("optimizer", name, RATES)
    if name == "sgd":
        return {"lr": lr}
    import torch
    from torch.optim.lr_scheduler import LambdaLR

    return {
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=lr),
        "scheduler": lambda optimizer, total_steps: LambdaLR(optimizer, method_factor(method, epochs, lr)),
        "scheduler_every": "epoch",
    }
