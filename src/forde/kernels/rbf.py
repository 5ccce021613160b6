"""RBF kernel with a metric (https://arxiv.org/abs/2306.02775, eq. 9 and 13):

    k(s_i, s_j) = exp(−q_ij/h),   q_ij = (s_i − s_j)ᵀ Σ⁻¹ (s_i − s_j)

With h = med/ln M this is the paper's exp(−q/(2h')), h' = med/(2 ln M).

A bandwidth is a rule that turns squared distances q `[M, M, B]` into a bandwidth h for exp(−q/h).

The median heuristic h = med/ln M gives exp(−med/h) = 1/M: typical neighbours weigh together as much as oneself. The
paper's text and the authors' code agree on it; publications differ in *which* distances the median is taken of:

    column   over i, for each frozen member j and sample b (the released code; the kernel is then asymmetric)
    row      over j, for each live member i and sample b (Yashima et al.'s code)
    sample   over all M² pairs, for each sample b (the paper's algorithm box)
    all      over all pairs and samples (D'Angelo & Fortuin)

The zero distance of a member to itself is in the set, as in all published code. No gradient flows through h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from forde.errors import FordeError, unknown_name
from forde.kernels.base import Kernel, Similarity
from forde.kernels.metric import Identity, Metric, squared_distances

FLOOR = 1e-12
"""Added to h so that coinciding members divide 0 by something."""

Over = Literal["column", "row", "sample", "all"]


def median(values: Tensor, dim: int) -> Tensor:
    """True median along `dim` (the mean of the two middle values; `torch.median` returns the lower one).

    >>> import torch
    >>> float(median(torch.tensor([0.0, 4.0, 1.0, 2.0]), 0))
    1.5
    """
    ordered = values.movedim(dim, -1).contiguous().sort(-1).values  # sorting across memory is several times slower
    n = ordered.shape[-1]
    lower, upper = ordered[..., (n - 1) // 2], ordered[..., n // 2]
    return lower if n % 2 else (lower + upper) / 2


@dataclass(frozen=True)
class Median:
    """h = median(q)/ln M + 1e-12.

    Args:
        over: which distances share a median: `"column"` (default), `"row"`, `"sample"`, `"all"`.
        plus_one: divide by ln(M+1), as D'Angelo & Fortuin do.
        halve: divide by 2 ln M: the exponent of the paper's algorithm box, whose kernel is the square of the text's.
        square: use median(q)², as Yashima et al.'s code does (not invariant to the scale of q).

    >>> import torch
    >>> Median()(torch.tensor([[[0.0], [1.0]], [[1.0], [0.0]]])).shape
    torch.Size([1, 2, 1])
    """

    over: Over = "column"
    plus_one: bool = False
    halve: bool = False
    square: bool = False

    def __post_init__(self) -> None:
        if self.over not in ("column", "row", "sample", "all"):
            raise unknown_name("bandwidth", self.over, ("column", "row", "sample", "all"))

    @property
    def symmetric(self) -> bool:
        """Whether h is the same for (i, j) and (j, i)."""
        return self.over in ("sample", "all")

    def __call__(self, q: Tensor) -> Tensor:
        """`[M, M, B]` → something that broadcasts against it."""
        q, members = q.detach(), q.shape[1]
        if self.over == "column":
            middle = median(q, 0).unsqueeze(0)
        elif self.over == "row":
            middle = median(q, 1).unsqueeze(1)
        elif self.over == "sample":
            middle = median(q.flatten(0, 1), 0)[None, None]
        else:
            middle = median(q.flatten(), 0)[None, None, None]
        middle = middle.square() if self.square else middle
        # For one member ln 1 = 0; the kernel is then 1 whatever h is, and callers skip repulsion altogether.
        log = math.log(members + self.plus_one) or 1.0
        return middle / (log * (2 if self.halve else 1)) + FLOOR


@dataclass(frozen=True)
class Fixed:
    """The same bandwidth throughout.

    >>> import torch
    >>> float(Fixed(2.0)(torch.zeros(3, 3, 1)))
    2.0
    """

    h: float
    symmetric: bool = True

    def __post_init__(self) -> None:
        if not self.h > 0:
            raise FordeError(f"the bandwidth is {self.h}, but a positive number was expected.")

    def __call__(self, q: Tensor) -> Tensor:
        """`[M, M, B]` → `[1, 1, 1]`."""
        return q.new_full((1, 1, 1), self.h)


Bandwidth = Median | Fixed
"""What `RBF(bandwidth=...)` takes."""

NAMED = {
    "per_column": Median("column"),
    "per_row": Median("row"),
    "per_sample": Median("sample"),
    "global": Median("all"),
}


def as_bandwidth(value: str | float | Bandwidth) -> Bandwidth:
    """A bandwidth rule from its name (`"per_column"`, `"per_row"`, `"per_sample"`, `"global"`) or a number.

    >>> as_bandwidth("per_sample")
    Median(over='sample', plus_one=False, halve=False, square=False)
    """
    if isinstance(value, str):
        if value not in NAMED:
            raise unknown_name("bandwidth", value, NAMED)
        return NAMED[value]
    return value if isinstance(value, (Median, Fixed)) else Fixed(float(value))


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
