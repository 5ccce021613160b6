"""Two ways to start a network.

`he` (default): He normal, std √(2/fan_in) before a ReLU and √(1/fan_in) for the head, biases 0.
`reference`: what the authors' code does: a normal of scale s = 1/√fan_in cut at ±2s, biases 0 and a zero head, so that
all members start with the same (uniform) prediction and zero input gradients. Haiku does not widen the normal to make
up for the cut, so the weights have std 0.8796 s.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from forde.errors import FordeError

Initialisation = Literal["he", "reference"]


@torch.no_grad()
def initialise(network: nn.Module, head: nn.Linear, how: Initialisation) -> None:
    """Initialise every convolution and linear layer in place; BatchNorm keeps scale 1 and shift 0."""
    if how not in ("he", "reference"):
        raise FordeError(f"initialisation is {how!r}, but 'he' or 'reference' was expected.")
    for module in network.modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        if module.bias is not None:
            module.bias.zero_()
        fan_in = module.weight[0].numel()
        if how == "he":
            module.weight.normal_(0, math.sqrt((1 if module is head else 2) / fan_in))
        elif module is head:
            module.weight.zero_()
        else:
            scale = math.sqrt(1 / fan_in)
            nn.init.trunc_normal_(module.weight, 0, scale, -2 * scale, 2 * scale)
