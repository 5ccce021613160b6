"""What validation rows of a table go through when a strength is chosen: none of the shifts that runs are tested under.

Rows are in standard units, where 0 is the mean of a column over the training rows and 1 its standard deviation. The
test's shifts are Gaussian noise and missing values.

    offset     every column is moved up or down by s         exchanged  a value is that of another row, by chance
    gain       a column's values are multiplied by 1 ± g     rounding   to multiples of d
    clipping   to ±c
"""

from __future__ import annotations

import numpy as np

from forde.errors import unknown_name

LEVELS = (1, 2)
"""Mild and strong."""
ROW_PERTURBATIONS = ("offset", "gain", "exchanged", "rounding", "clipping")


def perturbed_rows(rows: np.ndarray, name: str, level: int, *, seed: int = 0) -> np.ndarray:
    """Rows `[N, D]` in standard units under one of the `ROW_PERTURBATIONS` at level 1 or 2.

    >>> perturbed_rows(np.array([[0.4, -3.0]], np.float32), "clipping", 1).tolist()
    [[0.4000000059604645, -1.5]]
    """
    if name not in ROW_PERTURBATIONS:
        raise unknown_name("perturbation of tables", name, ROW_PERTURBATIONS)
    drawn = np.random.default_rng([seed, ROW_PERTURBATIONS.index(name), level])
    columns = rows.shape[1]
    if name == "offset":
        return rows + np.float32((0.3, 0.8)[level - 1]) * drawn.choice(np.array([-1, 1], np.float32), columns)
    if name == "gain":
        return rows * (1 + np.float32((0.3, 0.6)[level - 1]) * drawn.choice(np.array([-1, 1], np.float32), columns))
    if name == "exchanged":
        other = np.take_along_axis(rows, drawn.permuted(np.tile(np.arange(len(rows))[:, None], columns), axis=0), 0)
        return np.where(drawn.random(rows.shape) < (0.1, 0.3)[level - 1], other, rows)
    if name == "rounding":
        step = np.float32((0.75, 1.5)[level - 1])
        return np.round(rows / step) * step
    limit = np.float32((1.5, 0.75)[level - 1])
    return np.clip(rows, -limit, limit)
