"""How strongly predictions depend on each column of a table: the length of input gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forde.ensemble import Ensemble
from forde.prediction import Prediction

Array = NDArray[Any]
Quantities = Callable[[Any], Tensor]
"""A prediction for B rows → what is differentiated for each of them `[B, Q]`."""

MOST_AT_ONCE = 4096
"""Rows that are differentiated together, which bounds the memory that it takes."""


def mean_gradients(
    ensemble: Ensemble, X: Array, quantities: Quantities, origins: NDArray[np.intp], weights: Array | None = None
) -> Array:
    """I_qd = Σ_n w_n ‖∂f_q(x_n)/∂x_n,d‖ / Σ_n w_n: rows `[N, D']`, weights `[N]` → `[Q, D]`.

    Args:
        ensemble: in evaluation mode, so that rows do not depend on each other.
        origins: which column d each of the D' comes from; the norm is over all that come from the same, which is the
            absolute value where there is one.

    >>> ensemble = Ensemble(lambda: torch.nn.Linear(3, 1), 1, likelihood="regression")
    >>> found = mean_gradients(ensemble.eval(), np.ones((4, 3)), lambda p: p.mean[:, None], np.array([0, 1, 1]))
    >>> (a, b, c), = ensemble.members[0].weight.tolist()
    >>> np.allclose(found, [[abs(a), (b**2 + c**2) ** 0.5]])
    True
    """
    columns = torch.from_numpy(origins)
    each = np.ones(len(X)) if weights is None else weights
    total: Tensor | float = 0.0
    for rows in _parts(len(X)):
        of_rows = torch.from_numpy(each[rows])
        squares = [gradient.double().square() for gradient in _gradients(ensemble, X[rows], quantities)]
        of_columns = torch.stack(
            [s.new_zeros(len(s), int(columns.max()) + 1).index_add_(1, columns, s) for s in squares]
        )
        total = total + (of_columns.sqrt() * of_rows[:, None]).sum(1)
    assert isinstance(total, Tensor)
    return total.numpy() / each.sum()


def _gradients(ensemble: Ensemble, X: Array, quantities: Quantities) -> Iterator[Tensor]:
    """∂f_q/∂x of rows `[B, D']`, for each q in turn."""
    with torch.enable_grad():
        x = ensemble.as_input(torch.from_numpy(X)).requires_grad_()
        prediction: Prediction = ensemble.likelihood.prediction(ensemble(x))
        values = quantities(prediction).sum(0)
        for value in values:
            # A network may round its inputs, or use none of them: then nothing depends on them.
            yield torch.autograd.grad(value, x, retain_graph=True, allow_unused=True, materialize_grads=True)[0]


def _parts(n_rows: int) -> Iterator[slice]:
    return (slice(start, start + MOST_AT_ONCE) for start in range(0, n_rows, MOST_AT_ONCE))
