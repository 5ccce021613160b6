"""How much the members of an ensemble differ in their input gradients."""

from __future__ import annotations

from typing import Any

import torch

from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.training.diagnostics import probe


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
        given = ensemble.to_members(ensemble.as_input(part))
        cosine = probe(ensemble, given, target.to(ensemble.device))["gradient_cosine"]
        total += len(part) * (1 - cosine)
    return total / len(inputs)
