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
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forde.errors import FordeError
from forde.kernels.distance import InSlices
from forde.kernels.pca import PrincipalDirections, fit_pca
from forde.torch_private import weighted_differences

if TYPE_CHECKING:
    from typing_extensions import Self

FEW = 32
"""Dimensions below which two products are faster on a CPU than one and a loop over members."""
WIDE = 128
"""From here on a loop over members is faster on a CPU than torch's own function (at 768 half as long)."""
IN_CACHE = 1 << 19
"""Numbers of one slice of the loop (2 MiB in float32)."""


def squared_distances(live: Tensor, frozen: Tensor | None = None) -> Tensor:
    """q_ijb = ‖live_ib − frozen_jb‖²: `[M, B, D]`, `[M, B, D]` → `[M, M, B]`; gradients flow to `live` only.

    Formed from differences: where members nearly coincide the bandwidth is about 1e-12, and the usual expansion
    ‖a‖² + ‖b‖² − 2⟨a, b⟩ would amplify its rounding by 1e12. Neither pass holds more than a slice of `[M, M, B, D]`.

    Args:
        frozen: left out, the same numbers as `live`.

    >>> squared_distances(torch.tensor([[[0.0]], [[3.0]]]), torch.tensor([[[0.0]], [[1.0]]])).squeeze(-1)
    tensor([[0., 1.],
            [9., 4.]])
    """
    result: Tensor
    if live.device.type != "cpu":
        result = InSlices.apply(live, live.detach() if frozen is None else frozen.detach())
    elif frozen is None and live.shape[-1] >= WIDE:
        result = _AmongThemselves.apply(live, None)
    else:
        places = live.transpose(0, 1), (live if frozen is None else frozen).detach().transpose(0, 1)
        result = torch.cdist(*places, compute_mode="donot_use_mm_for_euclid_dist").square().permute(1, 2, 0)
    return result


class Metric(ABC):
    """A linear map of representations whose Euclidean distance is the metric's."""

    needs_training_data: bool = False

    @abstractmethod
    def __call__(self, s: Tensor) -> Tensor:
        """`[M, B, D]` → `[M, B, D']`."""

    def squared_distances(self, live: Tensor) -> Tensor:
        """Between members `[M, B, D]` → `[M, M, B]`; gradients flow to the first of each pair."""
        return squared_distances(self(live))

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

    squared_distances = staticmethod(squared_distances)


def squared_distances_under(form: Tensor, z: Tensor) -> Tensor:
    """q_ijb = (z_ib − z_jb)ᵀ S (z_ib − z_jb), S symmetric `[D, D]`: `[M, B, D]` → `[M, M, B]`; on a CPU.

    The gradient is made of the same Sz as the distance. So one product per member does for both, where a root R of
    S = RRᵀ asks for two, zR and that of the gradient with Rᵀ.

    >>> squared_distances_under(torch.tensor([[2.0]]), torch.tensor([[[0.0]], [[3.0]]])).squeeze(-1)
    tensor([[ 0., 18.],
            [18.,  0.]])
    """
    result: Tensor = _AmongThemselves.apply(z, form)
    return result


class _AmongThemselves(torch.autograd.Function):
    """On a CPU: each pair once, and torch's loop for the gradient, which holds no differences."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, form: Tensor | None) -> Tensor:
        mapped = z
        if form is not None:
            # Differences of near-identical members are exact, those of their products are not.
            z = z - z[0]
            mapped = torch.stack([z[0], *(member @ form for member in z[1:])])
        ctx.save_for_backward(mapped)
        members, places, size = z.shape
        q = z.new_zeros(members, members, places)
        at_once = max(1, IN_CACHE // (members * size))
        for first, i in product(range(0, places, at_once), range(members - 1)):
            some = slice(first, first + at_once)
            difference = z[i + 1 :, some] - z[i, some]
            if form is None:
                squares = torch.linalg.vector_norm(difference, dim=-1).square_()  # in one pass, unlike a product
            else:
                other = mapped[i + 1 :, some] - mapped[i, some]
                squares = torch.linalg.vecdot(difference, other).clamp_min_(0)  # products may round to less
            q[i, i + 1 :, some] = squares
        return q.add_(q.transpose(0, 1).clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mapped,) = ctx.saved_tensors
        places, weight = mapped.transpose(0, 1).contiguous(), (2 * gradients[0]).permute(2, 0, 1).contiguous()
        return weighted_differences(weight, places).transpose(0, 1), None


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
        share = float(self.pca.explained_variance_ratio.sum())
        return f"its metric follows {rank} of {size} principal directions of the inputs ({share:.1%} of their variance)"

    def __call__(self, s: Tensor) -> Tensor:
        matrix = self.matrix(s.device, s.dtype, s.shape[-1])
        # One product per member, all of one shape: equal members then stay equal to the last bit, and so exert no
        # force, where one product over all rows may round equal rows differently.
        return torch.stack([member @ matrix for member in s])

    def matrix_of(self, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        return None if self.pca is None else self.matrix(device, dtype)

    def squared_distances(self, live: Tensor) -> Tensor:
        if live.device.type == "cpu" and live.shape[-1] >= FEW:
            matrix = self.matrix(live.device, live.dtype, live.shape[-1])
            if 2 * matrix.shape[1] > matrix.shape[0]:  # with fewer directions two products are less work
                if live.dtype not in self._forms:
                    self._forms[live.dtype] = matrix @ matrix.T
                return squared_distances_under(self._forms[live.dtype], live)
        return squared_distances(self(live))

    def matrix(self, device: torch.device, dtype: torch.dtype, size: int | None = None) -> Tensor:
        """R with RRᵀ = Σ⁻¹ `[D, R]`, or `[D, R + D]` where directions outside U weigh something too.

        Args:
            size: D of what it will be applied to.
        """
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
        found = self._maps[device, dtype]
        if size is not None and size != len(found):
            raise FordeError(
                f"the metric was fitted to inputs of {len(found)} values, but members are compared by vectors of "
                f"{size}; PCA metrics fit the input-gradient space of the same data only."
            )
        return found


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
