"""RBF kernel with a metric (https://arxiv.org/abs/2306.02775, eq. 9 and 13):

    k(s_i, s_j) = exp(−q_ij/h),   q_ij = (s_i − s_j)ᵀ Σ⁻¹ (s_i − s_j)

With h = med/ln M this is the paper's exp(−q/(2h')), h' = med/(2 ln M).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from forde.kernels.bandwidth import Bandwidth, Median, as_bandwidth
from forde.kernels.base import Kernel, Similarity
from forde.kernels.distance import squared_distances
from forde.kernels.metric import Identity, Metric


@dataclass(frozen=True)
class RBF(Kernel):
    """Gaussian of the distance under a metric.

    Args:
        metric: `Identity()`, `PCA()`, `Tuned(alpha)`, each optionally of low rank.
        bandwidth: `"per_column"` (default), `"per_row"`, `"per_sample"`, `"global"`, a number, or a `Median(...)`.

    >>> import torch
    >>> z = torch.randn(3, 4, 5)
    >>> RBF(bandwidth="per_sample")(z, z).values.shape
    torch.Size([3, 3, 4])
    """

    metric: Metric = field(default_factory=Identity)
    bandwidth: str | float | Bandwidth = field(default_factory=Median)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", as_bandwidth(self.bandwidth))

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return as_bandwidth(self.bandwidth).symmetric

    @property
    def needs_training_data(self) -> bool:  # type: ignore[override]
        return self.metric.needs_training_data

    @property
    def note(self) -> str | None:
        return self.metric.note

    def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
        q = squared_distances(self.metric(live), self.metric(frozen))
        h = as_bandwidth(self.bandwidth)(q)
        return Similarity((-q / h).exp(), h)

    def among(self, live: Tensor) -> Similarity:
        assert callable(self.bandwidth)  # since __post_init__
        q = self.metric.squared_distances(live)
        h = self.bandwidth(q)
        return Similarity((-q / h).exp(), h)

    def metric_apart(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Kernel] | None:
        matrix = self.metric.matrix_of(device, dtype)
        return None if matrix is None else (matrix, replace(self, metric=Identity()))

    def prepare(self, batches: Callable[[], Iterator[Tensor]]) -> RBF:
        return replace(self, metric=self.metric.prepare(batches))
