"""Whether two steps from the same state came to the same: what a compiled step must show before it takes over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

EXACT, ROUGH = 2e-2, 0.7
"""Largest relative difference of a unit's gradient. In bfloat16 or TensorFloat-32 rounding alone moves the gradient of
a deep network with BatchNorm by a quarter."""


def gradients_by_name(groups: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Gradients of those parameters that have one, by unit and name.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> weight.sum().backward()
    >>> gradients_by_name([{"weight": weight, "unused": torch.ones(1, requires_grad=True)}])
    [{'weight': tensor([1.])}]
    """
    return [{name: p.grad for name, p in group.items() if p.grad is not None} for group in groups]


def disagreement(
    groups: Sequence[Mapping[str, Tensor]],
    expected: Sequence[Mapping[str, Tensor]],
    buffers: Sequence[Tensor],
    expected_buffers: Sequence[Tensor],
    *,
    rough: bool,
) -> str | None:
    """What differs between the gradients in `groups` and those expected, or between buffers, in words; None if nothing.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> weight.sum().backward()
    >>> disagreement([{"weight": weight}], [{"weight": torch.tensor([2.0])}], [], [], rough=False)
    'its gradient differs by 50.0% (does the forward pass branch in Python?)'
    """
    tolerance = ROUGH if rough else EXACT
    for unit, (found, wanted) in enumerate(zip(gradients_by_name(groups), expected, strict=True)):
        if set(found) != set(wanted):
            return f"other parameters of unit {unit} have gradients (does the forward pass branch in Python?)"
        if not wanted:
            continue
        error = torch.stack([(found[name] - wanted[name]).double().norm() for name in wanted]).norm()
        size = torch.stack([gradient.double().norm() for gradient in wanted.values()]).norm()
        if not float(error) <= tolerance * float(size) + 1e-12:
            return f"its gradient differs by {float(error / size):.1%} (does the forward pass branch in Python?)"
    for buffer, value in zip(buffers, expected_buffers, strict=True):
        if not torch.allclose(buffer.double(), value.double(), rtol=tolerance, atol=tolerance):
            return "it leaves other values in the network's buffers"
    return None
