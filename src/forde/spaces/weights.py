"""Weight space (D'Angelo & Fortuin 2021, https://arxiv.org/abs/2106.11642): z_i = θ_i.

All trainable parameters, BatchNorm's scale and shift included, its running statistics not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from forde.spaces.base import Space, View


@dataclass(frozen=True)
class Weights(Space):
    """Members are compared by their flattened parameters: `[1, P]`.

    >>> from forde.spaces import Weights
    >>> Weights().scale
    'data'
    """

    scale: ClassVar[Literal["batch", "data"]] = "data"
    mixes: ClassVar[Literal["representation", "weights"]] = "weights"
    uses_batch: ClassVar[bool] = False

    def represent(self, view: View) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in view.parameters]).unsqueeze(0)
