"""What the first output of a training seems not to be meant as: probabilities in the place of logits, wrong shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

log = logging.getLogger(__name__)

ENOUGH_OUTPUTS = 16
"""So many logits are not all between 0 and 1 by chance."""


def are_probabilities(output: Tensor) -> bool:
    """Whether the rows of `[..., C]` are ≥ 0 and sum to 1.

    >>> are_probabilities(torch.tensor([[0.2, 0.8], [1.0, 0.0]])), are_probabilities(torch.zeros(2, 3))
    (True, False)
    """
    values = output.double()
    return bool((values >= 0).all() & ((values.sum(-1) - 1).abs() < 8 * torch.finfo(output.dtype).eps).all())


def warn_of_softmax(output: Tensor) -> None:
    """Warn where `[..., C]` should be logits of classes and is probabilities."""
    if are_probabilities(output):
        log.warning(
            "The network's outputs are probabilities that sum to 1, but the loss takes logits and applies softmax "
            "itself; remove the softmax at the end of the network."
        )


def warn_of_sigmoid(output: Tensor) -> None:
    """Warn where outputs should be logits of yes or no and all lie between 0 and 1."""
    if output.numel() >= ENOUGH_OUTPUTS and bool(((output >= 0) & (output <= 1)).all()):
        log.warning(
            "The network's outputs all lie between 0 and 1, as after a sigmoid, but the loss takes logits and applies "
            "the sigmoid itself; remove it if there is one at the end of the network."
        )


def warn_of_broadcasting(function: Callable[[Tensor, Tensor], Any], output: Tensor, y: Tensor) -> None:
    """Warn where a loss takes every output `[B, 1]` together with every target `[B]`."""
    if y.dim() != 1 or output.shape != (len(y), 1) or len(y) < 2:
        return
    with torch.no_grad(), _Broadcasts(len(y)) as broadcasts:
        function(output, y)
    if broadcasts.seen:
        log.warning(
            "The output is %s and the targets are %s, so that their difference in your loss is %s: every output "
            "against every target; give targets of shape %s, or squeeze the output in the loss.",
            list(output.shape), list(y.shape), [len(y), len(y)], list(output.shape),
        )  # fmt: skip


class _Broadcasts(TorchFunctionMode):
    """Notices when something `[B, 1]` and something `[B]` become `[B, B]`."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch, self.seen = batch, False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        shapes = {tuple(tensor.shape) for tensor in args if isinstance(tensor, Tensor)}
        if isinstance(result, Tensor) and shapes == {(self.batch, 1), (self.batch,)}:
            self.seen |= result.shape == (self.batch, self.batch) or result.dim() == 0
        return result
