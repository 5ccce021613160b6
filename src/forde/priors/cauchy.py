"""Cauchy prior on outputs or features (Yashima et al. 2022, https://arxiv.org/abs/2206.00944).

    −log p(F) = Σ_{b,q} ln(1 + a F_bq²),   divided by B in mean-loss units;  gradient 2aF/(1 + aF²)/B

Their `prior_scale` is the coefficient a = 1/γ² of a Cauchy of scale γ, not γ itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.priors.base import Prior
from forde.spaces.base import View


@dataclass(frozen=True)
class Cauchy(Prior):
    """Heavy-tailed pull of outputs or features towards 0.

    Args:
        coefficient: a; the paper takes 1e-6 on outputs, and on features 1e-3 (CIFAR-10) or 5e-3 (others).
        on: `"outputs"` or `"features"` (those of the method's `Features` space, else the last linear layer's input).

    >>> Cauchy(1e-3, on="features").needs_features
    True
    """

    coefficient: float
    on: Literal["outputs", "features"] = "outputs"

    def __post_init__(self) -> None:
        if not self.coefficient >= 0:
            raise FordeError(f"coefficient is {self.coefficient}, but 0 or a positive number was expected.")
        if self.on not in ("outputs", "features"):
            raise FordeError(f"on is {self.on!r}, but 'outputs' or 'features' was expected.")

    @property
    def needs_features(self) -> bool:  # type: ignore[override]
        return self.on == "features"

    @property
    def takes_stacks(self) -> bool:  # type: ignore[override]
        return self.on == "features"  # outputs may have any number of axes

    def energy(self, view: View) -> Tensor:
        values = view.output if self.on == "outputs" else view.features
        assert values is not None
        values = values.float() if values.itemsize < 4 else values
        penalties = torch.log1p(self.coefficient * values.square())
        return (
            penalties.reshape(len(penalties), -1).sum(-1).mean() if self.on == "outputs" else penalties.sum(-1).mean(-1)
        )
