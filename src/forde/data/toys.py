"""The two toy tasks of the paper's figures 2 and 3, generated, so that they need no download.

1D regression after Izmailov et al. 2019 (https://arxiv.org/abs/1907.07504): three clusters of inputs with gaps between
them. Their data file is a sample of a random network; this is another sample of the same kind.
2D classification after D'Angelo & Fortuin 2021 (https://arxiv.org/abs/2106.11642): five Gaussians on a ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from forde.models import MLP
from forde.random_state import seeded
from forde.turns import turn

CLUSTERS = ((-7.2, -4.8), (-1.2, 1.2), (4.8, 7.2))
"""Intervals that hold all training inputs of the regression task."""
CLUSTER_SIZES = (115, 136, 149)
SIGNAL_STD = 0.55
NOISE_STD = 0.05
TARGET_HIDDEN = (200, 50, 50, 50)

N_CLASSES = 5
RING_RADIUS = 5.0
TRAIN_PER_CLASS = 40
TEST_PER_CLASS = 20


class Regression1D(NamedTuple):
    """Raw inputs, targets, and what networks see of the inputs."""

    x: Tensor
    """`[400]`, cluster after cluster from left to right."""
    y: Tensor
    """`[400]`."""
    features: Callable[[Tensor], Tensor]
    """x ↦ (x/2, (x/2)²), `[...]` → `[..., 2]`: the function of the same name."""


class Classification2D(NamedTuple):
    """Train and test points, class after class."""

    x: Tensor
    """`[200, 2]`."""
    y: Tensor
    """`[200]` in 0..4."""
    x_test: Tensor
    """`[100, 2]`."""
    y_test: Tensor
    """`[100]`."""


def features(x: Tensor) -> Tensor:
    """x ↦ (x/2, (x/2)²): `[...]` → `[..., 2]`.

    With one input feature every normalised input gradient is +1 or −1 and nothing can repel; with two they are
    directions in a plane.

    >>> features(torch.tensor([4.0]))
    tensor([[2., 4.]])
    """
    half = x / 2
    return torch.stack([half, half.square()], dim=-1)


def regression_1d(seed: int = 0) -> Regression1D:
    """y = f(x/2, (x/2)²) + ε,  ε ~ N(0, 0.05²),  f a He-initialised ReLU network 2-200-50-50-50-1.

    x is uniform in each cluster, 115, 136 and 149 points. f is shifted and scaled to mean 0 and standard deviation 0.55
    over the training inputs.

    >>> x, y, features = regression_1d()
    >>> x.shape, y.shape, features(x).shape
    (torch.Size([400]), torch.Size([400]), torch.Size([400, 2]))
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [
        low + (high - low) * torch.rand(size, generator=generator)
        for (low, high), size in zip(CLUSTERS, CLUSTER_SIZES, strict=True)
    ]
    x = torch.cat(parts)
    noise = NOISE_STD * torch.randn(len(x), generator=generator)
    with turn("data"), seeded(seed, gpus=False), torch.no_grad():
        f = MLP(2, TARGET_HIDDEN, 1)(features(x)).squeeze(-1)
    return Regression1D(x, SIGNAL_STD * (f - f.mean()) / f.std(correction=0) + noise, features)


def classification_2d(seed: int = 42) -> Classification2D:
    """x | y=k ~ N(μ_k, I),  μ_k = 5 (cos φ_k, sin φ_k),  φ_k = π/2 + 2πk/5; 40 train and 20 test points per class.

    >>> x, y, x_test, y_test = classification_2d()
    >>> x.shape, y.bincount().tolist(), x_test.shape
    (torch.Size([200, 2]), [40, 40, 40, 40, 40], torch.Size([100, 2]))
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = _around(class_means(), TRAIN_PER_CLASS, generator)
    return Classification2D(x, y, *_around(class_means(), TEST_PER_CLASS, generator))


def class_angles() -> Tensor:
    """φ_k = π/2 + 2πk/5: `[5]`."""
    return math.pi / 2 + 2 * math.pi / N_CLASSES * torch.arange(N_CLASSES)


def class_means() -> Tensor:
    """Centres of the five classes on the ring: `[5, 2]`.

    >>> [round(v, 4) for v in class_means()[0].abs().tolist()]
    [0.0, 5.0]
    """
    angles = class_angles()
    return RING_RADIUS * torch.stack([angles.cos(), angles.sin()], dim=-1)


def _around(means: Tensor, per_class: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    y = torch.arange(len(means)).repeat_interleave(per_class)
    return means[y] + torch.randn(len(y), 2, generator=generator), y
