"""Kernels for unit vectors, which the paper names as future work (Jayasumana et al. 2014).

Each first projects to the unit sphere (a zero vector stays zero). With the chord q = ‖u_i − u_j‖² and the angle φ:

    VonMisesFisher        exp(κ (cos φ − 1)) = exp(−κ q/2)
    Laplace               exp(−φ/√h), or exp(−√(q/h)) with the chord
    InverseMultiquadric   (1 + q/h)^{−β}

All are positive definite on the sphere of any dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.kernels.base import Kernel, Similarity
from forde.kernels.metric import squared_distances
from forde.kernels.rbf import Bandwidth, Median, as_bandwidth
from forde.vectors import unit


def _chords(live: Tensor, frozen: Tensor) -> Tensor:
    """Squared chord between unit vectors, 0 ≤ q ≤ 4: `[M, M, B]`."""
    return squared_distances(unit(live), unit(frozen))


def _safe_sqrt(values: Tensor) -> Tensor:
    """√ with derivative 0 at 0, so that coinciding members exert no force on each other instead of NaN."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1).sqrt(), 0)


@dataclass(frozen=True)
class VonMisesFisher(Kernel):
    """exp(κ (cos φ − 1)), the density of a direction around another with concentration κ.

    >>> u = torch.eye(2).unsqueeze(1)
    >>> VonMisesFisher(concentration=2.0)(u, u).values.squeeze(-1)
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """

    concentration: float = 5.0

    def __post_init__(self) -> None:
        if not self.concentration > 0:
            raise FordeError(f"concentration is {self.concentration}, but a positive number was expected.")

    def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
        q = _chords(live, frozen)
        return Similarity((-0.5 * self.concentration * q).exp(), q.new_full((1, 1, 1), 2 / self.concentration))


@dataclass(frozen=True)
class _Bandwidthed(Kernel):
    bandwidth: str | float | Bandwidth = field(default_factory=lambda: Median("sample"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", as_bandwidth(self.bandwidth))

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return as_bandwidth(self.bandwidth).symmetric


@dataclass(frozen=True)
class Laplace(_Bandwidthed):
    """exp(−distance/√h) with the great-circle distance, or the chord.

    >>> u = torch.eye(2).unsqueeze(1)
    >>> float(Laplace(bandwidth=1.0)(u, u).values[0, 1, 0].log())  # minus a right angle
    -1.5707...
    """

    distance: Literal["geodesic", "chord"] = "geodesic"

    def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
        chord = _safe_sqrt(_chords(live, frozen))
        # 2 asin(chord/2) is accurate at small angles, where arccos of a cosine loses half the digits. The cap keeps
        # its derivative finite for opposite members.
        distance = 2 * torch.asin((chord / 2).clamp(max=1 - 1e-6)) if self.distance == "geodesic" else chord
        h = as_bandwidth(self.bandwidth)(distance.square())
        return Similarity((-distance / h.sqrt()).exp(), h)


@dataclass(frozen=True)
class InverseMultiquadric(_Bandwidthed):
    """(1 + q/h)^{−β}: heavier tails than the RBF, so that distant members still repel.

    >>> u = torch.eye(2).unsqueeze(1)
    >>> float(InverseMultiquadric(bandwidth=2.0, exponent=1.0)(u, u).values[0, 1, 0])
    0.5
    """

    exponent: float = 0.5

    def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
        q = _chords(live, frozen)
        h = as_bandwidth(self.bandwidth)(q)
        return Similarity((1 + q / h).pow(-self.exponent), h)
