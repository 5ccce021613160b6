"""Metrics Σ⁻¹ of the RBF kernel, as maps s ↦ s̃ with ‖s̃_i − s̃_j‖² = (s_i − s_j)ᵀ Σ⁻¹ (s_i − s_j).

In the basis U of the training inputs' principal directions, with eigenvalues λ, a metric is a weight per direction:

    Identity                1
    PCA                     λ_d                            high-variance directions repel more (eq. 13)
    Tuned(α)                (1−α) + α λ_d                  the authors' website, May 2024: the default
    Tuned(α, harmonic)      1/(α/λ_d + 1−α)                the paper's appendix: Σ_α = α Λ⁻¹ + (1−α) I

`rank=r` keeps the top r directions; the others then weigh what λ = 0 gives them: 0, 0, 1−α and 0 in turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.kernels.distance import squared_distances, squared_distances_under
from forde.kernels.pca import PrincipalDirections, fit_pca

if TYPE_CHECKING:
    from typing_extensions import Self

FEW = 32
"""Dimensions below which two products are faster on a CPU than one and a loop over members."""


class Metric(ABC):
    """A linear map of representations whose Euclidean distance is the metric's."""

    needs_training_data: bool = False

    @abstractmethod
    def __call__(self, s: Tensor) -> Tensor:
        """`[M, B, D]` → `[M, B, D']`."""

    def squared_distances(self, z: Tensor) -> Tensor:
        """Between members `[M, B, D]` → `[M, M, B]`; gradients flow to the first of each pair."""
        return squared_distances(self(z))

    def matrix_of(self, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The map as a matrix `[D, D']`; None where it is none, or none that is worth a product."""
        return None

    @property
    def note(self) -> str | None:
        """One line on what it learned from the training inputs; None where there is nothing to say."""
        return None

    def prepare(self, batches: Callable[[], Iterator[Tensor]]) -> Self:
        """The metric fitted to the training inputs."""
        return self


@dataclass(frozen=True)
class Identity(Metric):
    """The Euclidean metric.

    >>> Identity()(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __call__(self, s: Tensor) -> Tensor:
        return s

    def squared_distances(self, z: Tensor) -> Tensor:
        return squared_distances(z)


@dataclass(frozen=True)
class Spectral(Metric):
    """A weight per principal direction; not yet fitted while `pca` is None."""

    rank: int | None = None
    center: bool = False
    pca: PrincipalDirections | None = field(default=None, repr=False)
    _maps: dict[tuple[torch.device, torch.dtype], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _forms: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    needs_training_data = True

    @abstractmethod
    def weights(self, variances: Tensor) -> Tensor:
        """Weight of directions with these eigenvalues λ `[R]` → `[R]`."""

    def prepare(self, batches: Callable[[], Iterator[Tensor]]) -> Self:
        if self.pca is not None:
            return self
        return replace(self, pca=fit_pca(batches, center=self.center, rank=self.rank))

    @property
    def note(self) -> str | None:
        """How much of the inputs' variance the directions hold."""
        if self.pca is None:
            return None
        size, rank = self.pca.directions.shape
        return f"{rank} of {size} directions hold {float(self.pca.explained_variance_ratio.sum()):.1%} of the variance"

    def __call__(self, s: Tensor) -> Tensor:
        matrix = self.matrix(s.device, s.dtype)
        self._refuse_other_size(s)
        # One product per member, all of one shape: equal members then stay equal to the last bit, and so exert no
        # force, where one product over all rows may round equal rows differently.
        return torch.stack([member @ matrix for member in s])

    def matrix_of(self, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        return None if self.pca is None else self.matrix(device, dtype)

    def squared_distances(self, z: Tensor) -> Tensor:
        if z.device.type != "cpu" or z.shape[-1] < FEW:
            return super().squared_distances(z)
        matrix = self.matrix(z.device, z.dtype)
        self._refuse_other_size(z)
        if 2 * matrix.shape[1] <= matrix.shape[0]:  # two products with few directions are less work
            return super().squared_distances(z)
        if z.dtype not in self._forms:
            self._forms[z.dtype] = matrix @ matrix.T
        return squared_distances_under(self._forms[z.dtype], z)

    def _refuse_other_size(self, s: Tensor) -> None:
        expected = 0 if self.pca is None else len(self.pca.directions)
        if s.shape[-1] != expected:
            raise FordeError(
                f"the metric was fitted to inputs of {expected} values, but members are compared by vectors of "
                f"{s.shape[-1]}; PCA metrics fit the input-gradient space of the same data only."
            )

    def matrix(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """R with RRᵀ = Σ⁻¹ `[D, R]`, or `[D, R + D]` where directions outside U weigh something too."""
        if (device, dtype) not in self._maps:
            if self.pca is None:
                raise FordeError(
                    f"the metric {type(self).__name__} is not fitted; train with forde.fit, or call "
                    "metric.prepare(batches) with a function that iterates over training inputs."
                )
            directions, variances = self.pca.directions, self.pca.variances
            weights, rest = self.weights(variances), float(self.weights(variances.new_zeros(1)))
            if directions.shape[0] == directions.shape[1] or rest == 0:
                matrix = directions * weights.sqrt()
            else:
                inside = directions * (weights - rest).clamp_min(0).sqrt()
                eye = torch.eye(directions.shape[0], dtype=directions.dtype, device=directions.device)
                matrix = torch.cat([inside, rest**0.5 * eye], dim=1)
            self._maps[device, dtype] = matrix.to(device=device, dtype=dtype)
        return self._maps[device, dtype]


@dataclass(frozen=True)
class PCA(Spectral):
    """Weights λ_d: repulsion follows the directions in which the data varies.

    Args:
        rank: keep only the top directions (for large inputs); None keeps all.
        center: subtract the mean of the training inputs first (the paper's words; the authors' code does not).
        pca: an already fitted `PrincipalDirections`; by default `forde.fit` fits one to the training inputs.

    >>> x = torch.randn(50, 4)
    >>> PCA().prepare(lambda: iter(x.split(10)))(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def weights(self, variances: Tensor) -> Tensor:
        return variances


@dataclass(frozen=True)
class Tuned(Spectral):
    """Between Identity (α = 0) and PCA (α = 1).

    Args:
        alpha: the paper chose 0.4 for CIFAR-100 and 0.2 for CIFAR-10.
        harmonic: the formula of the paper's appendix instead of the website's; see the module's table.

    >>> Tuned(alpha=0.5).weights(torch.tensor([3.0, 1.0]))
    tensor([2., 1.])
    """

    alpha: float = 0.4
    harmonic: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise FordeError(f"alpha is {self.alpha}, but a number between 0 (identity) and 1 (PCA) was expected.")

    def weights(self, variances: Tensor) -> Tensor:
        if not self.harmonic:
            return (1 - self.alpha) + self.alpha * variances
        if self.alpha == 0:
            return torch.ones_like(variances)
        return variances / (self.alpha + (1 - self.alpha) * variances)
