"""How good class probabilities are. All in float64; members first, `[M, N, C]`.

The ensemble's probability is the mean of its members', p̄ = (1/M) Σ_m p_m; every metric is of p̄.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from forde.errors import FordeError


def mixture(member_probs: Tensor) -> Tensor:
    """p̄: `[M, N, C]` → `[N, C]`.

    >>> mixture(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    return member_probs.double().mean(0)


def accuracy(probs: Tensor, y: Tensor, k: int = 1) -> float:
    """Share of samples whose label is among the k most probable classes: `[N, C]`, `[N]` → number.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    0.5
    """
    if not 1 <= k <= probs.shape[-1]:
        raise FordeError(f"k is {k}, but a number between 1 and the {probs.shape[-1]} classes was expected.")
    top = probs.topk(k, dim=-1).indices
    return float((top == y.unsqueeze(-1)).any(-1).double().mean())


def nll(member_logits: Tensor, y: Tensor) -> float:
    """Mean of −ln p̄(y) from logits `[M, N, C]`, by logsumexp: finite for any finite logits.

    −mean_n [ logsumexp_m ln p_m(y_n) − ln M ]

    >>> round(nll(torch.zeros(3, 5, 2), torch.zeros(5, dtype=torch.long)), 4)
    0.6931
    """
    return float(nll_per_sample(member_logits, y).mean())


def nll_per_sample(member_logits: Tensor, y: Tensor) -> Tensor:
    """−ln p̄(y): `[M, N, C]`, `[N]` → `[N]`."""
    log_probs = member_logits.double().log_softmax(-1)
    at_label = log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return math.log(len(log_probs)) - at_label.logsumexp(0)


def brier(probs: Tensor, y: Tensor) -> float:
    """Mean squared distance of p̄ from the one-hot label: `[N, C]`, `[N]` → number in [0, 2].

    >>> brier(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    2.0
    """
    target = torch.nn.functional.one_hot(y, probs.shape[-1])
    return float((probs.double() - target).square().sum(-1).mean())


def ece(probs: Tensor, y: Tensor, n_bins: int = 15) -> float:
    """Expected calibration error: Σ_bins (n_bin/N) |accuracy − confidence|, equal bins (lo, hi] of max p̄.

    >>> round(ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])), 4)
    0.3
    """
    table = reliability(probs, y, n_bins)
    gap = (table.accuracy - table.confidence).abs() * table.counts
    return float(gap.sum() / table.counts.sum())


def bin_index(values: Tensor, n_bins: int) -> Tensor:
    """Which of n equal bins (lo, hi] of [0, 1] each value is in, from 0; the value 0 is in the first.

    >>> bin_index(torch.tensor([0.0, 0.5, 0.51, 1.0], dtype=torch.float64), 2)
    tensor([0, 0, 1, 1])
    """
    if n_bins < 1:
        raise FordeError(f"n_bins is {n_bins}, but at least 1 bin was expected.")
    # ceil puts a value on an edge into the lower bin, so that 1.0 has one.
    return (values * n_bins).ceil().long().clamp(1, n_bins) - 1


class Reliability(NamedTuple):
    """A reliability diagram's bins: `counts`, mean `confidence` and `accuracy` in each, `[n_bins]`; 0 where empty."""

    counts: Tensor  # a tuple has a method called count
    confidence: Tensor
    accuracy: Tensor


def reliability(probs: Tensor, y: Tensor, n_bins: int = 15) -> Reliability:
    """Bins (lo, hi] of the confidence max p̄: `[N, C]`, `[N]` → counts, confidences, accuracies `[n_bins]`.

    >>> reliability(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), n_bins=2).counts
    tensor([0., 1.], dtype=torch.float64)
    """
    confidence, label = probs.double().max(-1)
    index = bin_index(confidence, n_bins)
    zeros = torch.zeros(n_bins, dtype=torch.float64, device=probs.device)
    count = zeros.index_add(0, index, torch.ones_like(confidence))
    divisor = count.clamp_min(1)
    return Reliability(
        count,
        zeros.index_add(0, index, confidence) / divisor,
        zeros.index_add(0, index, (label == y).double()) / divisor,
    )
