"""An optimizer inside a CUDA graph: its learning rate lives on the device, and it stands still after a bad loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

FUSED = (SGD, Adam, AdamW)
"""Their fused kernels take the learning rate as a tensor, and skip the update where a flag on the device is set."""


def make_capturable(optimizer: Optimizer, device: torch.device) -> bool:
    """Switch to the fused kernels; False where the optimizer has none, and is better left outside of the graph."""
    if type(optimizer) not in FUSED or any(group["differentiable"] for group in optimizer.param_groups):
        return False
    if any(not p.is_floating_point() or p.device != device for g in optimizer.param_groups for p in g["params"]):
        return False
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
    return True


def settings(optimizer: Optimizer) -> list[tuple[object, ...]]:
    """What a graph takes from the optimizer once and for all: everything but the learning rates."""
    return [
        tuple((name, value) for name, value in group.items() if name not in ("params", "lr"))
        for group in optimizer.param_groups
    ]


def learning_rates(optimizer: Optimizer) -> list[float]:
    """One number for each group of parameters."""
    return [float(group["lr"]) for group in optimizer.param_groups]


@contextmanager
def captured(optimizer: Optimizer, lrs: list[Tensor], bad: Tensor) -> Iterator[None]:
    """Inside, `optimizer.step()` reads its learning rates from `lrs` and does nothing where `bad` is 1."""
    outside = [group["lr"] for group in optimizer.param_groups]
    for group, lr in zip(optimizer.param_groups, lrs, strict=True):
        group["lr"] = lr
    optimizer.found_inf = bad  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.found_inf  # type: ignore[attr-defined]
        for group, lr in zip(optimizer.param_groups, outside, strict=True):
            group["lr"] = lr
