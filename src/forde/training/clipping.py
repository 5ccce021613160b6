"""Gradients of a limited length: each member's by itself, with priors and repulsion in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from forde.step import Runner

TINY = 1e-6
"""Beside a length that is divided by, as in torch."""


def clip_before_each_step(optimizer: Optimizer, runner: Runner, limit: float) -> None:
    """From here on `optimizer.step()` clips first, also where it is part of a CUDA graph.

    Args:
        limit: of the length √Σ_p ‖g_p‖² over one member's parameters p.
    """

    def clip(*_: Any) -> None:
        for group in runner.groups:
            if runner.sample_axis == 1:
                clip_stacked(group, limit)
            elif any(p.grad is not None and p.grad.is_sparse for p in group.values()):
                clip_sparse(group, limit)
            else:
                clip_grad_norm_(group.values(), limit)

    optimizer.register_step_pre_hook(clip)


@torch.no_grad()
def clip_sparse(parameters: Mapping[str, Tensor], limit: float) -> None:
    """As `clip_grad_norm_`, where some gradients are sparse."""
    values = []
    for parameter in parameters.values():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad
            values.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    factor = (limit / (get_total_norm(values) + TINY)).clamp(max=1.0)
    for each in values:
        each.mul_(factor)


@torch.no_grad()
def clip_stacked(parameters: Mapping[str, Tensor], limit: float) -> None:
    """As `clip_grad_norm_`, for each row of stacked parameters `[M, ...]` by itself.

    >>> weight = torch.zeros(2, 2, requires_grad=True)
    >>> weight.grad = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> clip_stacked({"weight": weight}, 1.0)
    >>> weight.grad
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    gradients = [parameter.grad for parameter in parameters.values() if parameter.grad is not None]
    if not gradients:
        return
    lengths = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients])  # [P, M]
    factors = (limit / (torch.linalg.vector_norm(lengths, dim=0) + TINY)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.to(gradient.dtype).view(-1, *[1] * (gradient.dim() - 1)))
