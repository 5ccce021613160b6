"""Is the uncertainty of use? It should tell wrong from right predictions, and foreign from usual inputs. In float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from forde.errors import FordeError


class RiskCoverage(NamedTuple):
    """Mean loss of the share of samples that are answered, the most certain first."""

    coverage: Tensor
    """`[N]` k/N for k = 1 … N."""
    risk: Tensor
    """`[N]` mean loss of the k most certain samples."""


def risk_coverage(uncertainty: Tensor, loss: Tensor) -> RiskCoverage:
    """The risk of answering only where one is certain: `[N]`, `[N]` → coverage and risk `[N]`.

    risk(k/N) = (1/k) Σ loss of the k samples of smallest uncertainty; samples of equal uncertainty share their mean
    loss, since nothing tells which of them to answer first.

    >>> risk_coverage(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0])).risk
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    _check_pair(uncertainty, loss)
    values, group, size = uncertainty.double().unique(return_inverse=True, return_counts=True)
    shared = torch.zeros_like(values).index_add(0, group, loss.double()) / size
    count = torch.arange(1, len(loss) + 1, dtype=torch.float64, device=loss.device)
    return RiskCoverage(count / len(loss), shared[group.sort().values].cumsum(0) / count)  # `unique` sorts


class Auroc(NamedTuple):
    """An area under the ROC curve and its standard error."""

    value: float
    error: float


def auroc(usual: Tensor, foreign: Tensor) -> Auroc:
    """How well a score tells foreign from usual inputs: P(foreign > usual) + ½ P(equal); `[N]`, `[K]` → number.

    1 if every foreign input scores higher, ½ if the score says nothing. The standard error is DeLong's (1988): of the
    placements of each sample among those of the other kind.

    >>> round(auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.8])).value, 4)  # 5 of 6 pairs
    0.8333
    """
    if not len(usual) or not len(foreign):
        raise FordeError(f"there are {len(usual)} usual and {len(foreign)} foreign scores; give at least one of each.")
    a, b = usual.double().sort().values, foreign.double().sort().values
    foreign_above = _share_below(a, b)
    usual_below = 1 - _share_below(b, a)
    variance = sum(
        float(placed.var(correction=1)) / len(placed) for placed in (foreign_above, usual_below) if len(placed) > 1
    )
    return Auroc(float(foreign_above.mean()), math.sqrt(variance))


def _share_below(values: Tensor, at: Tensor) -> Tensor:
    """Share of the sorted values below each point, equal ones counted half: `[N]`, `[K]` → `[K]`."""
    below, up_to = torch.searchsorted(values, at), torch.searchsorted(values, at, right=True)
    return (below + up_to).double() / (2 * len(values))


def _check_pair(uncertainty: Tensor, loss: Tensor) -> None:
    if uncertainty.shape != loss.shape or loss.dim() != 1 or not len(loss):
        raise FordeError(
            f"uncertainties have shape {list(uncertainty.shape)} and losses {list(loss.shape)}, but [N] of at least "
            "one sample was expected for both."
        )
