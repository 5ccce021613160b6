"""How similar two members are: the contract of a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self


class Similarity(NamedTuple):
    """Kernel values and, for logging, the bandwidth they used."""

    values: Tensor
    """`[M, M, B]`, k(live_i, frozen_j) for each sample; 1 where the two coincide."""
    bandwidth: Tensor | None
    """Broadcasts against `values`."""


class Kernel(ABC):
    """Compares every live member with every frozen one; gradients flow to the live side only.

    That is enough for every rule: a member treats the others as constants, and for a symmetric kernel the derivative of
    a sum over pairs is the derivative in the first argument.
    """

    symmetric: bool = True
    needs_training_data: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls) and "among" not in vars(cls):
            cls.among = Kernel.among  # type: ignore[method-assign]  # not a parent's short cut around it

    @abstractmethod
    def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
        """`[M, B, D]`, `[M, B, D]` → values `[M, M, B]`."""

    def among(self, live: Tensor) -> Similarity:
        """Members `[M, B, D]` compared with each other as they stand."""
        return self(live, live.detach())

    def prepare(self, batches: Callable[[], Iterator[Tensor]]) -> Self:
        """The kernel fitted to the training inputs, given as a function that starts a new pass over them."""
        return self

    @property
    def note(self) -> str | None:
        """One line on what it learned from the training data; None where there is nothing to say."""
        return None

    def metric_apart(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Kernel] | None:
        """A matrix R `[D, D']` and a kernel k' with k(a, b) = k'(aR, bR), so that each member may apply R for itself.

        None where there is no such matrix.
        """
        return None
