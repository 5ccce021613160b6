"""Regression: members' Gaussians for each row kept in a file, and the sums from which all scores follow.

As in `forde.metrics.statistics`, each row has terms, and every metric is a function of their sum, so that cells add
up and resampling is a weighted sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forde.durable import make_folder, write_whole
from forde.errors import FordeError
from forde.metrics.regression import crps_per_sample, gaussian_mixture_nll_per_sample, mixture_cdf
from forde.prediction import RegressionPrediction

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Of the central intervals whose coverage is scored."""
FORMAT = "forde-quantities-1"


@dataclass(frozen=True)
class SavedQuantities:
    """What members predicted for N rows of one cell, and the truth, all in the target's own units."""

    means: Tensor
    """`[M, N]` float64."""
    variances: Tensor
    """`[M, N]` float64."""
    y: Tensor
    """`[N]` float64."""

    @property
    def prediction(self) -> RegressionPrediction:
        """The mixture."""
        return RegressionPrediction(self.means, self.variances)

    @property
    def pit(self) -> Tensor:
        """F(y) of the mixture `[N]`: uniform on [0, 1] for a calibrated model."""
        return mixture_cdf(self.means, self.variances, self.y)

    def terms(self) -> Tensor:
        """`[N, K]`: 1, (μ̄ − y)², −ln p(y), CRPS, deviations (epistemic, aleatoric, total), inside each interval.

        >>> saved = SavedQuantities(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(3))
        >>> {name: round(float(value), 3) for name, value in scores(saved.terms().sum(0)).items()}["nll"]
        0.919
        """
        mixture = self.prediction
        off_centre = (self.pit - 0.5).abs()
        columns = [
            torch.ones_like(self.y),
            (mixture.mean - self.y).square(),
            gaussian_mixture_nll_per_sample(self.means, self.variances, self.y),
            crps_per_sample(self.means, self.variances, self.y),
            *(variance.sqrt() for variance in (mixture.epistemic, mixture.aleatoric, mixture.total)),
            *((off_centre <= level / 2).double() for level in LEVELS),
        ]
        return torch.stack([column.double() for column in columns], -1)


def scores(sums: Tensor) -> dict[str, Tensor]:
    """Sums of terms `[..., K]` → each metric `[...]`.

    >>> scores(torch.tensor([2.0, 8.0, 1.0, 1.0, 0.2, 0.2, 0.2, 1.0, 1.0, 2.0, 2.0], dtype=torch.float64))["rmse"]
    tensor(2., dtype=torch.float64)
    """
    means = sums[..., 1:] / sums[..., :1]
    named = ("nll", "crps", "epistemic_std", "aleatoric_std", "total_std", *map(coverage_name, LEVELS))
    return {"rmse": means[..., 0].sqrt(), **{name: means[..., 1 + place] for place, name in enumerate(named)}}


def coverage_name(level: float) -> str:
    """The metric's name for the coverage of an interval.

    >>> coverage_name(0.9)
    'coverage_90'
    """
    return f"coverage_{round(100 * level)}"


def write_quantities(path: Path, saved: SavedQuantities, content: str) -> None:
    """Write predictions that were computed from what the fingerprint `content` names."""
    from safetensors.numpy import save

    arrays = {name: getattr(saved, name).double().cpu().contiguous().numpy() for name in ("means", "variances", "y")}
    data = save(arrays, metadata={"format": FORMAT, "fingerprint": content})
    try:
        make_folder(path.parent)
        write_whole(path, data)
    except OSError as error:
        raise FordeError(f"could not write '{path}': {error.strerror}; choose a writable folder.") from None


def read_quantities(path: Path, content: str | None = None) -> SavedQuantities | None:
    """What is in a file; None if it is missing, damaged, or not of what the fingerprint `content` names."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if content is not None and (file.metadata() or {}).get("fingerprint") != content:
                return None
            return SavedQuantities(*(file.get_tensor(name) for name in ("means", "variances", "y")))
    except Exception:  # a damaged file can raise anything, from SafetensorError to TypeError
        return None
