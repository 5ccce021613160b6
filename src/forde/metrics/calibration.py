"""Calibration errors beyond ECE: bins of equal mass, and every class on its own. In float64.

ECE's bins have equal width, so a confident model has nearly all its samples in one of them, and it looks at the most
probable class only. The two errors here each lift one of these limits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.metrics.classification import bin_index


def adaptive_ece(probs: Tensor, y: Tensor, n_bins: int = 15) -> float:
    """Calibration error over bins of equal mass: Σ_bins (n_bin/N) |accuracy − confidence|; `[N, C]`, `[N]` → number.

    The samples are sorted by confidence max p̄ and cut into bins whose sizes differ by at most 1 (Nixon et al. 2019).

    >>> round(adaptive_ece(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([0, 0]), n_bins=2), 4)
    0.25
    """
    confidence, label = probs.double().max(-1)
    return adaptive_error(confidence, label == y, n_bins)


def adaptive_error(confidence: Tensor, correct: Tensor, n_bins: int = 15) -> float:
    """`adaptive_ece` from confidences `[N]` and whether each prediction was right `[N]`.

    >>> adaptive_error(torch.tensor([0.5, 0.5]), torch.tensor([True, False]), n_bins=2)
    0.0
    """
    n = len(confidence)
    if n < 1 or n_bins < 1:
        raise FordeError(f"there are {n} samples and {n_bins} bins, but at least 1 of each was expected.")
    values, group, size = confidence.double().unique(return_inverse=True, return_counts=True)
    # Equal confidences share their mean correctness; else the error would depend on the order among them.
    right = torch.zeros_like(values).index_add(0, group, correct.double()) / size
    gap = (values - right)[group.sort().values]  # sorted by confidence, because `unique` sorts
    index = torch.arange(n, device=gap.device) * n_bins // n
    bins = torch.zeros(n_bins, dtype=torch.float64, device=gap.device).index_add(0, index, gap)
    return float(bins.abs().sum() / n)


def classwise_ece(probs: Tensor, y: Tensor, n_bins: int = 15) -> float:
    """Mean over classes c of Σ_bins (n_bin/N) |frequency of c − mean p̄_c|, equal bins (lo, hi] of p̄_c.

    `[N, C]`, `[N]` → number (Kull et al. 2019).

    >>> round(classwise_ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])), 4)
    0.3
    """
    return float(classwise_gaps(probs, y, n_bins).abs().sum() / probs.shape[-1] / len(probs))


def classwise_gaps(probs: Tensor, y: Tensor, n_bins: int = 15) -> Tensor:
    """Σ (p̄_c − 1[y = c]) over the samples in each bin of each class: `[N, C]`, `[N]` → `[C, n_bins]`.

    Gaps of several batches add up to those of all samples.

    >>> classwise_gaps(torch.tensor([[0.75, 0.25]]), torch.tensor([0]), n_bins=2)
    tensor([[ 0.0000, -0.2500],
            [ 0.2500,  0.0000]], dtype=torch.float64)
    """
    p = probs.double()
    n_classes = p.shape[-1]
    gap = p - torch.nn.functional.one_hot(y, n_classes)
    row = torch.arange(n_classes, device=p.device) * n_bins
    index = (row + bin_index(p, n_bins)).flatten()
    flat = torch.zeros(n_classes * n_bins, dtype=torch.float64, device=p.device).index_add(0, index, gap.flatten())
    return flat.view(n_classes, n_bins)
