"""How much the members of an ensemble differ: in their probabilities, their votes and their input gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.prediction import entropy
from forde.training.diagnostics import probe


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


def gradient_cosine_distance(ensemble: Ensemble, x: Any, y: Any, *, batch_size: int = 512) -> float:
    """Mean over member pairs i < j and samples of 1 − cos(∂f_i/∂x, ∂f_j/∂x), f the logit of the true class.

    In evaluation mode. A zero gradient has no direction and counts as orthogonal (distance 1).

    Args:
        ensemble: a classification ensemble of at least two members.
        x: inputs `[N, ...]`, floating point.
        y: labels `[N]`.

    >>> ensemble = Ensemble(lambda: torch.nn.Linear(4, 3), n_members=3, seed=0)
    >>> 0 < gradient_cosine_distance(ensemble, torch.randn(8, 4), torch.zeros(8, dtype=torch.long)) < 2
    True
    """
    if ensemble.n_members < 2 or not ensemble.likelihood.takes_labels:
        raise FordeError(
            f"gradient distance compares the members of a classification ensemble, but this one has "
            f"{ensemble.n_members} member(s) and the likelihood {type(ensemble.likelihood).__name__}; "
            "use a classification ensemble of at least 2 members."
        )
    inputs, labels = torch.as_tensor(x), torch.as_tensor(y)
    if len(inputs) == 0 or len(inputs) != len(labels) or not inputs.is_floating_point():
        raise FordeError(
            f"inputs have shape {list(inputs.shape)} and type {inputs.dtype} and there are {len(labels)} labels; "
            "give floating-point inputs with one label each, at least one."
        )
    total = 0.0
    for part, target in zip(inputs.split(batch_size), labels.split(batch_size), strict=True):
        cosine = probe(ensemble, ensemble.as_input(part), target.to(ensemble.device))["gradient_cosine"]
        total += len(part) * (1 - cosine)
    return total / len(inputs)
