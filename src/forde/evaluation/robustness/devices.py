"""Where networks run and where float64 is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def device_of(model: Callable[[Tensor], Any], device: str | torch.device | None) -> torch.device:
    """The device asked for, else where the model's parameters are, else the CPU.

    >>> device_of(nn.Linear(1, 1), None)
    device(type='cpu')
    """
    if device is not None:
        return torch.device(device)
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


def float64_device(device: torch.device) -> torch.device:
    """The device itself, or the CPU where it has no float64.

    >>> float64_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if device.type == "mps" else device
