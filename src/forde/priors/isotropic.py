"""Isotropic Gaussian prior on all weights = weight decay:  −(1/N) log p(θ) = (λ/2)‖θ‖²,  gradient λθ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.priors.base import Prior
from forde.torch_private import add_each


@dataclass(frozen=True)
class Isotropic(Prior):
    """The same step as `torch.optim.SGD(weight_decay=λ)`: coupled, on every parameter, BatchNorm and biases included.

    >>> import torch
    >>> weight = torch.ones(2, requires_grad=True)
    >>> weight.grad = torch.zeros(2)
    >>> Isotropic(0.1).add_gradients({"weight": weight})
    >>> weight.grad
    tensor([0.1000, 0.1000])
    """

    weight_decay: float = 5e-4
    on_weights = True
    takes_stacks = True

    def __post_init__(self) -> None:
        if not self.weight_decay >= 0:
            raise FordeError(f"weight_decay is {self.weight_decay}, but 0 or a positive number was expected.")

    def add_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        """grad += λθ in place, where there is a gradient; one call for all parameters."""
        trained = [parameter for parameter in parameters.values() if parameter.grad is not None]
        if self.weight_decay and trained:
            with torch.no_grad():
                add_each([p.grad for p in trained if p.grad is not None], trained, self.weight_decay)
