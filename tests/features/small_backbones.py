"""Small networks and images that the tests of features share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from forde.data import Images, from_arrays
from forde.data.features import Backbone, Preprocessing

HALF = Preprocessing((8, 8), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
N = 23


class Small(nn.Module):
    """A convolution, BatchNorm, and a classifier; counts the samples that it has seen."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 6, 3)
            self.norm = nn.BatchNorm2d(6)
            self.norm.running_mean.normal_()  # type: ignore[union-attr]
            self.flat = nn.Flatten()
            self.hidden = nn.Linear(6 * 36, 5)
            self.classifier = nn.Linear(5, 10)
        self.seen = 0
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.sizes.append(len(x))
        return self.classifier(self.hidden(self.flat(torch.relu(self.norm(self.conv(x))))))

    def by_hand(self, x: Tensor) -> Tensor:
        """What the classifier is given, written out."""
        z = self.conv(x)
        mean, var = (each.view(-1, 1, 1) for each in (self.norm.running_mean, self.norm.running_var))
        z = (z - mean) / (var + self.norm.eps).sqrt()
        return (z.clamp(min=0).flatten(1) @ self.hidden.weight.T + self.hidden.bias).detach()


def small(seed: int = 0, *, layer: str = "classifier", at: str = "input", pool: str = "none") -> Backbone:
    return Backbone("small", Small(seed), HALF, layer=layer, at=at, pool=pool)  # type: ignore[arg-type]


def images(n: int = N, side: int = 8, channels: int = 3, seed: int = 0) -> Images:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, side, side, channels), np.uint8)
    found = from_arrays(pixels, np.arange(n) % 4, name="pixels")
    assert isinstance(found, Images)
    return found


def inputs(found: Images) -> Tensor:
    """What `HALF` makes of images of 8 x 8, written out."""
    return (torch.from_numpy(found.images).permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.25
