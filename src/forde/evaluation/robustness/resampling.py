"""Random weights over images: the bootstrap for standard errors, random swaps for a paired test.

The image is the unit. The corrupted copies of an image succeed or fail together, so where cells have the same labels in
the same order they are taken to show the same images, and an image keeps its weight in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from forde.errors import FordeError
from forde.evaluation.robustness.devices import float64_device
from forde.evaluation.robustness.fingerprints import fingerprint
from forde.evaluation.robustness.saved_cells import SavedCell
from forde.metrics.statistics import statistics

Draws = Callable[[Tensor], Tensor]


def resampler(kind: Literal["bootstrap", "swap"], n_resamples: int, seed: int, device: torch.device) -> Draws:
    """A function labels `[N]` → weights `[n_resamples, N]`, the same for the same labels; float64 on `device`.

    bootstrap: how often each image is drawn in N draws with replacement. swap: 0 or 1 with equal probability.

    >>> draws = resampler("bootstrap", 4, 0, torch.device("cpu"))
    >>> draws(torch.tensor([0, 1, 1])).sum(1)
    tensor([3., 3., 3., 3.], dtype=torch.float64)
    """
    if n_resamples < 2:
        raise FordeError(f"the number of resamples is {n_resamples}, but at least 2 were expected.")
    known: dict[str, Tensor] = {}

    def draws(labels: Tensor) -> Tensor:
        key = fingerprint(labels)
        if key not in known:
            rng = np.random.default_rng([seed, int(key, 16)])
            n = len(labels)
            rows = np.empty((n_resamples, n))
            for row in rows:
                row[:] = (
                    np.bincount(rng.integers(n, size=n), minlength=n)
                    if kind == "bootstrap"
                    else rng.integers(2, size=n)
                )
            known[key] = torch.from_numpy(rows).to(device)
        return known[key]

    return draws


def resampled_sums(saved: SavedCell, draws: Draws, n_bins: int, device: torch.device) -> Tensor:
    """Sums of a cell's statistics: row 0 of the data, then one per resample; `[1 + R, K]` on the CPU."""
    rows = statistics(saved.terms.to(float64_device(device)), n_bins)
    return torch.cat([rows.sum(0, keepdim=True), draws(saved.labels) @ rows]).cpu()
