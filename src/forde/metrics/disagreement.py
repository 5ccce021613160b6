"""How much the members of an ensemble differ in their probabilities and in their votes."""

from __future__ import annotations

import torch
from torch import Tensor

from forde.prediction import entropy


def uncertainty(member_probs: Tensor) -> dict[str, float]:
    """Mean and standard deviation over samples of the three entropies, in nats: `[M, N, C]` → six numbers.

    total H[p̄], aleatoric (1/M) Σ_m H[p_m], epistemic = total − aleatoric (mutual information, in [0, min(ln M, ln C)]).

    >>> certain_but_opposed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> round(uncertainty(certain_but_opposed)["epistemic"], 4)
    0.6931
    """
    total, aleatoric = entropies(member_probs)
    parts = {"total": total, "aleatoric": aleatoric, "epistemic": (total - aleatoric).clamp_min(0)}
    means = {name: float(values.mean()) for name, values in parts.items()}
    return means | {f"{name}_std": float(values.std(correction=0)) for name, values in parts.items()}


def entropies(member_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Total and aleatoric entropy per sample: `[M, N, C]` → `[N]`, `[N]`, float64.

    >>> entropies(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))[1]
    tensor([0.], dtype=torch.float64)
    """
    p = member_probs.double()
    return entropy(p.mean(0)), entropy(p).mean(0)


def disagreement(member_probs: Tensor) -> float:
    """Share of member pairs i < j that predict different classes, mean over samples: `[M, N, C]` → number in [0, 1].

    Logits serve as well as probabilities. One member has nobody to disagree with: 0.

    >>> disagreement(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]]]))  # 2 of 3 pairs
    0.6666666666666666
    """
    return float(disagreement_per_sample(member_probs).mean())


def disagreement_per_sample(member_probs: Tensor) -> Tensor:
    """Share of member pairs that predict different classes: `[M, N, C]` → `[N]`, float64."""
    members, samples, classes = member_probs.shape
    votes = torch.zeros(samples, classes, dtype=torch.float64, device=member_probs.device)
    votes.scatter_add_(
        1, member_probs.argmax(-1).T, torch.ones(samples, members, dtype=votes.dtype, device=votes.device)
    )
    same_pairs = (votes * (votes - 1)).sum(-1)
    pairs = members * (members - 1)
    return (pairs - same_pairs) / max(pairs, 1)
