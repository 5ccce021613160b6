"""Classification metrics as sums over samples, so that data can be streamed, pooled and resampled.

Each sample gives a row of statistics `[K]`; every metric is a function of the sum of rows. Batches add up to a data
set, cells to a severity, and a resampled data set is a weighted sum, so one function turns all of them into scores.
Calibration error fits in because its bins are fixed: ECE = Σ_bins |Σ_{n in bin} (confidence − correct)| / N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.metrics.classification import bin_index
from forde.metrics.disagreement import disagreement_per_sample, entropies

MEANS = ("accuracy", "nll", "brier", "total", "aleatoric", "epistemic", "disagreement", "confidence")
"""Metrics that are means over samples; `ece` is the one that is not."""
METRICS = (*MEANS, "ece")
Sums = Mapping[tuple[str, int], Tensor]
"""For each (corruption, severity) sums of rows `[..., K]`."""
Scoring = Callable[[Tensor], dict[str, Tensor]]
"""Sums of rows `[..., K]` → each metric `[...]`."""
CHUNK = 2**22
"""Float64 numbers of one intermediate tensor: 32 MiB."""


def sample_terms(member_logits: Tensor, y: Tensor) -> Tensor:
    """`[M, N, C]` logits or log-probabilities, `[N]` labels (`[N, C]` probabilities) → `[N, 8]` terms of the MEANS.

    In float64, from log-probabilities throughout, so that no logit is too large; computed in slices over samples. Terms
    under probabilities of labels are their means over labels that are drawn from these.

    >>> sample_terms(torch.zeros(2, 3, 4), torch.tensor([0, 1, 2])).shape
    torch.Size([3, 8])
    """
    members, samples, classes = member_logits.shape
    if samples != len(y) or samples == 0:
        raise FordeError(f"there are {samples} predictions for {len(y)} labels; give one label each, at least one.")
    step = max(1, CHUNK // (members * classes))
    slices = zip(member_logits.split(step, dim=1), y.split(step), strict=True)
    return torch.cat([_terms(part.double().log_softmax(-1), target) for part, target in slices])


def _terms(log_probs: Tensor, y: Tensor) -> Tensor:
    member_probs = log_probs.exp()
    probs = member_probs.mean(0)
    confidence, label = probs.max(-1)
    if y.is_floating_point():
        drawn = y.double()
        correct = drawn.gather(-1, label.unsqueeze(-1)).squeeze(-1)
        nll = (drawn * (math.log(len(log_probs)) - log_probs.logsumexp(0))).sum(-1)
        at_label = (drawn * probs).sum(-1)
    else:
        correct = (label == y).double()
        of_members = log_probs.gather(-1, y.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        nll = math.log(len(log_probs)) - of_members.logsumexp(0)
        at_label = probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    # Σ_c (p_c − 1[c = y])² = Σ p² − 2 p_y + 1
    brier = probs.square().sum(-1) - 2 * at_label + 1
    total, aleatoric = entropies(member_probs)
    epistemic = (total - aleatoric).clamp_min(0)
    terms = (correct, nll, brier, total, aleatoric, epistemic, disagreement_per_sample(log_probs), confidence)
    return torch.stack(terms, -1)


def statistics(terms: Tensor, n_bins: int = 15) -> Tensor:
    """Terms `[N, 8]` → rows `[N, K]`, K = 9 + n_bins: a 1 to count, the terms, and confidence − correct in its ECE bin.

    >>> statistics(sample_terms(torch.zeros(2, 3, 4), torch.tensor([0, 1, 2]))).shape
    torch.Size([3, 24])
    """
    correct, confidence = terms[:, MEANS.index("accuracy")], terms[:, MEANS.index("confidence")]
    bins = torch.nn.functional.one_hot(bin_index(confidence, n_bins), n_bins)
    return torch.cat([torch.ones_like(terms[:, :1]), terms, bins * (confidence - correct).unsqueeze(-1)], -1)


def scores(sums: Tensor) -> dict[str, Tensor]:
    """Sums of rows `[..., K]` → each metric `[...]`, by the names in METRICS.

    >>> rows = statistics(sample_terms(torch.zeros(2, 3, 4), torch.tensor([0, 1, 2])))
    >>> {name: round(float(value), 4) for name, value in scores(rows.sum(0)).items() if name in ("nll", "epistemic")}
    {'nll': 1.3863, 'epistemic': 0.0}
    """
    count = sums[..., 0]
    means = {name: sums[..., 1 + index] / count for index, name in enumerate(MEANS)}
    return means | {"ece": sums[..., 1 + len(MEANS) :].abs().sum(-1) / count}


def pooled_scores(cells: Sums, scoring: Scoring = scores) -> dict[str, Tensor]:
    """Within a severity all types are one data set; mean of the severities' scores.

    >>> over, under = torch.zeros(2, 24), torch.zeros(2, 24)
    >>> over[:, 0] = under[:, 0] = 10
    >>> over[:, -1], under[:, -1] = 3, -3  # opposite gaps in one bin cancel
    >>> pooled_scores({("fog", 1): over, ("snow", 1): under})["ece"]
    tensor([0., 0.])
    """
    levels = sorted({severity for _, severity in cells})
    sums = torch.stack(
        [torch.stack([s for (_, level), s in cells.items() if level == severity]).sum(0) for severity in levels]
    )
    return {name: values.mean(0) for name, values in scoring(sums).items()}


def average_scores(cells: Sums, scoring: Scoring = scores) -> dict[str, Tensor]:
    """Mean of the cells' scores.

    >>> sums = torch.zeros(2, 24)
    >>> sums[:, 0], sums[:, -1] = 10, 3
    >>> average_scores({("fog", 1): sums, ("snow", 1): sums})["ece"]
    tensor([0.3000, 0.3000])
    """
    return {name: values.mean(0) for name, values in scoring(torch.stack(list(cells.values()))).items()}


def score_batches(batches: Iterable[tuple[Tensor, Tensor]], n_bins: int = 15) -> dict[str, float]:
    """All metrics of a stream of `(member logits [M, B, C], labels [B])`, of which only sums are kept.

    Labels may be probabilities of classes `[B, C]`.

    Log-probabilities serve as logits. Nothing waits for a GPU between batches.

    >>> batch = torch.zeros(2, 3, 4), torch.tensor([0, 1, 2])
    >>> round(score_batches([batch, batch])["nll"], 4)
    1.3863
    """
    sums = None
    for logits, y in batches:
        rows = statistics(sample_terms(logits, y), n_bins).sum(0)
        sums = rows if sums is None else sums + rows
    if sums is None:
        raise FordeError("there is nothing to score: no batch was given; pass at least one.")
    return {name: float(value) for name, value in scores(sums).items()}
