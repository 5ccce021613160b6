"""How different the members are: cheap measurements on a probe batch, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from forde.arguments import Arguments, Input, Of, called, each_tensor
from forde.ensemble import Ensemble
from forde.forward import explaining_forward, in_evaluation, stacked, tensor_output
from forde.prediction import as_rows
from forde.step.sources import sources_of
from forde.vectors import unit


def probe(
    ensemble: Ensemble,
    x: Input,
    y: Tensor,
    *,
    of: Of = None,
    at_once: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """`disagreement` and `gradient_cosine` of the members on one batch; both NaN for a single member.

    disagreement: share of member pairs that predict different classes (over all pixels or labels); for regression, the
    standard deviation of the members' means. gradient_cosine: mean over pairs and samples of cos(∂f_i/∂x, ∂f_j/∂x),
    f the scalar that the likelihood names: in classification the true-class logit.

    Args:
        of: which inputs x are, as in `InputGradients`.
        at_once: all members' forward pass in one, `[M, B, ...]` → `[M, B, C]`, where there is one.
    """
    if ensemble.n_members < 2:
        return {"disagreement": float("nan"), "gradient_cosine": float("nan")}
    if at_once is None or isinstance(x, Arguments):
        outputs, gradients = outputs_and_gradients(ensemble, x, y, of)
    else:
        outputs, gradients = _at_once(ensemble, x, y, at_once)
    return {
        "disagreement": _disagreement(ensemble, outputs),
        "gradient_cosine": float("nan") if gradients is None else pairwise_cosine(gradients.flatten(2)),
    }


def outputs_and_gradients(ensemble: Ensemble, x: Input, y: Tensor, of: Of = None) -> tuple[Tensor, Tensor | None]:
    """Members' outputs on a batch `[M, B, ...]`, and gradients of the likelihood's scalar by the inputs `[M, B, ...]`.

    In evaluation mode; None in place of gradients where the inputs or the likelihood have none.
    """
    there = of is not None or any(tensor.is_floating_point() for tensor in each_tensor(x))
    likelihood = ensemble.likelihood
    outputs: list[Tensor] = []
    gradients: list[Tensor] = []
    with in_evaluation(ensemble):
        for member in ensemble.members:
            taken = sources_of(member, x, of) if there else nullcontext((x, None))
            with torch.enable_grad(), explaining_forward(x), taken as (inputs, sources):
                output = tensor_output(called(member, inputs.clone()))  # some networks work in place
                if sources is not None and output.requires_grad and likelihood.without_scalar(output, y) is None:
                    scalar = likelihood.scalar(output, y).sum()
                    gradients.append(sources.joined(torch.autograd.grad(scalar, sources.tensors, allow_unused=True)))
            outputs.append(output.detach())
    return stacked(outputs), torch.stack(gradients) if gradients else None


def _at_once(
    ensemble: Ensemble, x: Tensor, y: Tensor, at_once: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor | None]:
    """The same in one pass, by layers that know no modes."""
    likelihood = ensemble.likelihood
    with torch.enable_grad():
        inputs = x.detach().expand(ensemble.n_members, *x.shape).clone().requires_grad_(x.is_floating_point())
        outputs = at_once(inputs.clone())
        there = inputs.requires_grad and outputs.requires_grad
        if not there or likelihood.without_scalar(outputs[0], y) is not None:
            return outputs.detach(), None
        if likelihood.takes_stacks:
            scalars = likelihood.scalar(outputs, y)
        else:
            scalars = torch.stack([likelihood.scalar(output, y) for output in outputs])
        (gradients,) = torch.autograd.grad(scalars.sum(), inputs, allow_unused=True, materialize_grads=True)
    return outputs.detach(), gradients


def _disagreement(ensemble: Ensemble, outputs: Tensor) -> float:
    prediction = ensemble.likelihood.prediction(outputs)
    rows = as_rows(prediction)
    if rows is not None:
        logits = rows.member_logits
        votes = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).sum(0).double()  # [B, C]
        members = len(logits)
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
