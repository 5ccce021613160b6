"""One batch for several networks, each of which sees it as it was given, also after one that works in place."""

from __future__ import annotations

from torch import Tensor

from forde.torch_private import version_of


class Untouched:
    """Hands out a copy of a batch, and another one once somebody has written to it. The batch itself stays as it is.

    >>> import torch
    >>> batch = torch.zeros(2)
    >>> untouched = Untouched(batch)
    >>> untouched.copy().add_(1), untouched.copy(), batch
    (tensor([1., 1.]), tensor([0., 0.]), tensor([0., 0.]))
    """

    def __init__(self, batch: Tensor) -> None:
        self._batch = batch
        self._copy: Tensor | None = None
        self._version = 0

    def copy(self) -> Tensor:
        """The batch as it was, in memory of its own."""
        if self._copy is None or version_of(self._copy) != self._version:
            self._copy = self._batch.clone()
            self._version = version_of(self._copy)
        return self._copy
