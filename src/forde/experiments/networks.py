"""Networks of experiments by name: the library's, and narrow or wide ones of their kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from torch import nn

from forde import models
from forde.errors import FordeError
from forde.models.mlp import MLP
from forde.models.resnet import ResNet


def network(name: str, shape: tuple[int, ...], n_classes: int) -> Callable[[], nn.Module]:
    """A function that makes a network for inputs of a shape `(H, W, C)` or `(D,)`.

    Args:
        name: `resnet18`, `preact_resnet18`, `wrn16_4`; `resnet18-w16` for one whose first group has 16 channels;
            `mlp-64-64` for a perceptron with these hidden layers, `mlp-bn-64-64` with BatchNorm.

    >>> sum(p.numel() for p in network("mlp-8", (2, 2, 1), 3)().parameters())
    67
    >>> network("resnet18-w16", (32, 32, 3), 10)().head
    Linear(in_features=128, out_features=10, bias=True)
    """
    if found := re.fullmatch(r"mlp(-bn)?((?:-\d+)+)", name):
        hidden, normed = [int(size) for size in found[2].split("-")[1:]], found[1] is not None
        return lambda: MLP(prod(shape), hidden, n_classes, batch_norm=normed)
    channels = shape[-1]
    if found := re.fullmatch(r"resnet18-w(\d+)", name):
        width = int(found[1])
        return lambda: ResNet(
            n_classes, stem=width, widths=[width, 2 * width, 4 * width, 8 * width], strides=(1, 2, 2, 2), blocks=2,
            pre_activation=False, channels=channels, initialisation="he",
        )  # fmt: skip
    if name not in ("resnet18", "preact_resnet18", "wrn16_4"):
        raise FordeError(
            f"unknown network '{name}'; expected resnet18, preact_resnet18, wrn16_4, resnet18-w16, mlp-64."
        )
    make = getattr(models, name)
    return lambda: make(n_classes, channels=channels)
