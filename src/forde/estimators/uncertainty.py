"""How unsure an ensemble is about rows, split into two sources."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray


class Uncertainty(NamedTuple):
    """How unsure the ensemble is about each row: `total = aleatoric + epistemic`.

    For `FordeClassifier` in nats `[N]`, for `FordeRegressor` as variances in squared target units `[N]` or `[N, K]`.
    """

    total: NDArray[Any]
    """Entropy of the averaged probabilities, or variance of the predictive distribution."""
    aleatoric: NDArray[Any]
    """Noise in the data, which more data would not remove: mean entropy, or mean noise variance, of the members."""
    epistemic: NDArray[Any]
    """Disagreement of the members: mutual information, or variance of their means."""
