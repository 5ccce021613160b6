"""How wide a kernel is: rules that turn squared distances q `[M, M, B]` into a bandwidth h for exp(−q/h).

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
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from forde.errors import FordeError, unknown_name

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
        q = q.detach()
        members = q.shape[1]
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
