"""What a regressor predicts for rows: the mixture of its members' Gaussians, in units of the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from forde.errors import FordeError, whole_number
from forde.metrics.regression import gaussian_mixture_nll_per_sample, mixture_cdf, mixture_quantile

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Mixture:
    """p(y) = (1/M) Σ_m N(y; μ_m, σ_m²) for each of N rows, and for each of K targets where there are several.

    >>> mixture = Mixture(np.array([[-1.0, 0.0], [1.0, 0.0]]), np.ones((2, 2)))
    >>> mixture.mean, mixture.std
    (array([0., 0.]), array([1.41421356, 1.        ]))
    >>> low, high = mixture.interval(0.9)
    >>> mixture.cdf(low).round(6), mixture.cdf(high).round(6)
    (array([0.05, 0.05]), array([0.95, 0.95]))
    """

    means: Array
    """[M, N] or [M, N, K] each member's mean."""
    variances: Array
    """[M, N] or [M, N, K] each member's noise variance, with the noise scale in it."""

    @property
    def mean(self) -> Array:
        """[N] or [N, K]."""
        return self.means.mean(0)

    @property
    def std(self) -> Array:
        """[N] or [N, K] standard deviation of the mixture: of noise and disagreement together."""
        return np.sqrt(self.variances.mean(0) + self.means.var(0))

    def log_density(self, y: Any) -> Array:
        """ln p(y) of each row `[N]`, of all its targets together: `[N]` or `[N, K]` → `[N]`."""
        return -gaussian_mixture_nll_per_sample(*self._tensors, self._values(y)).numpy()

    def cdf(self, y: Any) -> Array:
        """F(y) of each row and target: `[N]` or `[N, K]` → the same."""
        return mixture_cdf(*self._tensors, self._values(y)).numpy()

    def quantile(self, level: float) -> Array:
        """The y with F(y) = level, by bisection `[N]` or `[N, K]`."""
        return mixture_quantile(*self._tensors, level).numpy()

    def quantiles(self, levels: float | Sequence[float]) -> Array:
        """The same for Q levels `[N, Q]` or `[N, K, Q]`; for a single number `[N]` or `[N, K]`, as of NumPy."""
        asked = np.asarray(levels)
        if asked.dtype.kind not in "fi" or asked.ndim > 1 or not asked.size or not ((asked > 0) & (asked < 1)).all():
            raise FordeError(
                f"quantiles are {levels!r}, but shares between 0 and 1 were expected; pass [0.05, 0.95] for 5 and 95 %."
            )
        return np.stack([self.quantile(float(level)) for level in asked.flat], axis=-1).reshape(
            *self.means.shape[1:], *asked.shape
        )

    def interval(self, confidence: float = 0.95) -> tuple[Array, Array]:
        """The quantiles (1 ∓ confidence)/2, between which a share `confidence` lies, half of the rest on each side."""
        if not isinstance(confidence, Real) or not 0 < confidence < 1:
            raise FordeError(
                f"confidence is {confidence!r}, but a share between 0 and 1 was expected; pass 0.95 for 95 %."
            )
        return self.quantile((1 - float(confidence)) / 2), self.quantile((1 + float(confidence)) / 2)

    def sample(self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> Array:
        """Draws `[N, S]` or `[N, K, S]`: each takes one member for all rows, and noise of its own for each row."""
        n_samples = whole_number("n_samples", n_samples, at_least=1)
        random = check_random_state(random_state)
        members = random.randint(len(self.means), size=n_samples)
        noise = random.standard_normal((n_samples, *self.means.shape[1:]))
        draws = self.means[members] + np.sqrt(self.variances[members]) * noise
        return np.moveaxis(draws, 0, -1)

    @property
    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.means), torch.from_numpy(self.variances)

    def _values(self, y: Any) -> torch.Tensor:
        values = np.asarray(y, dtype=np.float64).copy()  # torch warns of arrays that it may not write to
        if values.shape != self.means.shape[1:]:
            raise FordeError(
                f"y has shape {list(values.shape)}, but {list(self.means.shape[1:])}, as the predictions, was expected."
            )
        return torch.from_numpy(values)
