"""One batch for several networks, each of which sees it as it was given, also after one that works in place."""

from __future__ import annotations

from typing import Generic

from forde.arguments import Input, SameInput, each_tensor
from forde.torch_private import version_of


class Untouched(Generic[SameInput]):
    """Hands out a copy of a batch, and another one once somebody has written to it. The batch itself stays as it is.

    >>> import torch
    >>> batch = torch.zeros(2)
    >>> untouched = Untouched(batch)
    >>> untouched.copy().add_(1), untouched.copy(), batch
    (tensor([1., 1.]), tensor([0., 0.]), tensor([0., 0.]))
    """

    def __init__(self, batch: SameInput) -> None:
        self._batch: SameInput = batch
        self._copy: SameInput | None = None
        self._version: list[int] = []

    def copy(self) -> SameInput:
        """The batch as it was, in memory of its own."""
        if self._copy is None or _versions(self._copy) != self._version:
            self._copy = self._batch.clone()
            self._version = _versions(self._copy)
        return self._copy


def _versions(batch: Input) -> list[int]:
    return [version_of(tensor) for tensor in each_tensor(batch)]
