"""What may happen to the rows of a table after training: noisy measurements, and values that are missing.

Rows are in standard units, where 0 is the mean of a column over the training rows and 1 its standard deviation.
"""

from __future__ import annotations

import numpy as np

NOISE = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Standard deviation of the noise at severities 1 to 5, in those of the column."""
MISSING = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Share of values that are replaced by the mean of their column."""
SHIFTS = ("gaussian_noise", "missing_values")


def shifted(rows: np.ndarray, name: str, severity: int, *, seed: int = 0) -> np.ndarray:
    """Rows `[N, D]` in standard units under one of the SHIFTS at severity 1 to 5.

    gaussian_noise: x + s ε, ε ~ N(0, 1), s of NOISE. missing_values: each value is 0, the training mean, with a
    probability of MISSING. A value that is missing at one severity is missing at all higher ones.

    >>> rows = np.ones((1000, 4), np.float32)
    >>> float((shifted(rows, "missing_values", 5) == 0).mean().round(1))
    0.5
    """
    drawn = np.random.default_rng([seed, SHIFTS.index(name)])
    if name == "gaussian_noise":
        noise = drawn.standard_normal(rows.shape, np.float32)
        return rows + np.float32(NOISE[severity - 1]) * noise
    return np.where(drawn.random(rows.shape) < MISSING[severity - 1], np.float32(0), rows)
