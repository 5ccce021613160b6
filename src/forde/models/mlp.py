"""Multilayer perceptron with optional BatchNorm: the transfer-learning and toy networks of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from forde.errors import FordeError
from forde.models.initialisation import Initialisation, initialise


class MLP(nn.Module):
    """Linear (→ BatchNorm) → activation, repeated; then a linear head. Inputs are flattened.

    >>> import torch
    >>> MLP(8, [32, 32], 3)(torch.zeros(5, 2, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        n_inputs: int,
        hidden: Sequence[int],
        n_outputs: int,
        *,
        batch_norm: bool = False,
        activation: Callable[[], nn.Module] = nn.ReLU,
        initialisation: Initialisation = "he",
    ) -> None:
        super().__init__()
        if min([n_inputs, n_outputs, *hidden]) < 1:
            raise FordeError(f"layer sizes {[n_inputs, *hidden, n_outputs]} were given; each must be at least 1.")
        layers: list[nn.Module] = []
        width = n_inputs
        for size in hidden:
            layers.append(nn.Linear(width, size, bias=not batch_norm))  # BatchNorm's shift is the bias
            if batch_norm:
                layers.append(nn.BatchNorm1d(size))
            layers.append(activation())
            width = size
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, n_outputs)
        initialise(self, self.head, initialisation)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, ...]` → `[B, n_outputs]`."""
        logits: Tensor = self.head(self.body(x.flatten(1)))
        return logits
