"""How different the members are: cheap measurements on a probe batch, in evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor

from forde.ensemble import Ensemble
from forde.forward import explaining_forward, stacked, tensor_output
from forde.prediction import ClassificationPrediction
from forde.vectors import unit


def probe(ensemble: Ensemble, x: Tensor, y: Tensor) -> dict[str, float]:
    """`disagreement` and `gradient_cosine` of the members on one batch; both NaN for a single member.

    disagreement: share of member pairs that predict different classes; for regression, the standard deviation of the
    members' means. gradient_cosine: mean over pairs and samples of cos(∂f_i/∂x, ∂f_j/∂x), f the true-class logit.
    """
    if ensemble.n_members < 2:
        return {"disagreement": float("nan"), "gradient_cosine": float("nan")}
    modes = [module.training for module in ensemble.modules()]
    ensemble.eval()
    try:
        outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        inputs = x.detach().requires_grad_(x.is_floating_point())
        for member in ensemble.members:
            with torch.enable_grad():
                with explaining_forward(inputs):
                    output = tensor_output(member(inputs.clone()))  # some networks work in place
                there = inputs.requires_grad and output.requires_grad
                if there and ensemble.likelihood.without_scalar(output, y) is None:
                    scalar = ensemble.likelihood.scalar(output, y).sum()
                    gradients += torch.autograd.grad(scalar, inputs, allow_unused=True, materialize_grads=True)
            outputs.append(output.detach())
    finally:
        for module, mode in zip(ensemble.modules(), modes, strict=True):
            module.training = mode
    return {
        "disagreement": _disagreement(ensemble, stacked(outputs)),
        "gradient_cosine": pairwise_cosine(torch.stack(gradients).flatten(2)) if gradients else float("nan"),
    }


def _disagreement(ensemble: Ensemble, outputs: Tensor) -> float:
    prediction = ensemble.likelihood.prediction(outputs)
    if isinstance(prediction, ClassificationPrediction):
        votes = torch.nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]).sum(0).double()  # [B, C]
        members = len(outputs)
        agreeing = (votes * (votes - 1)).sum(-1) / (members * (members - 1))
        return float(1 - agreeing.mean())
    return float(prediction.epistemic.sqrt().mean())


def pairwise_cosine(vectors: Tensor) -> float:
    """Mean cosine over member pairs i < j and samples: `[M, B, D]` → number.

    >>> round(pairwise_cosine(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]], [[3.0, 0.0]]])), 4)
    0.3333
    """
    members = len(vectors)
    directions = unit(vectors.double())
    total = directions.sum(0).square().sum(-1) - directions.square().sum(-1).sum(0)  # Σ_{i≠j} cos
    return float((total / (members * (members - 1))).mean())
