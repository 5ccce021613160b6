"""Where every source of random numbers stands, as tensors: torch on the CPU and the GPU, numpy, and Python's random."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import Tensor

from forde.engine.mesh import Mesh


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The state of the global sources that a step on this device may draw from.

    >>> before = random_states(torch.device("cpu"))
    >>> expected = torch.rand(1), np.random.rand(), random.gauss(0, 1)
    >>> set_random_states(before, torch.device("cpu"))
    >>> (torch.rand(1), np.random.rand(), random.gauss(0, 1)) == expected
    True
    """
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    legacy = np.random.get_state(legacy=False)  # what other people's data sets draw from
    if legacy["bit_generator"] == "MT19937":
        inner = legacy["state"]
        states["numpy"] = torch.from_numpy(np.asarray(inner["key"]).astype(np.int64))
        rest = [inner["pos"], legacy["has_gauss"], legacy["gauss"]]
        states["numpy_rest"] = torch.tensor(rest, dtype=torch.float64)
    _, words, gauss = random.getstate()
    states["python"] = torch.tensor(words)
    states["python_rest"] = torch.tensor([float("nan") if gauss is None else gauss], dtype=torch.float64)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Inverse of `random_states`; a source that is not among them (another device's) is left alone."""
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in states:
        position, has_gauss, gauss = states["numpy_rest"].tolist()
        key = states["numpy"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, int(position), int(has_gauss), gauss))
    stored = float(states["python_rest"])
    random.setstate((3, tuple(states["python"].tolist()), None if math.isnan(stored) else stored))


def share_random_states(mesh: Mesh, device: torch.device) -> None:
    """Let all processes draw the same numbers from here on: data may be drawn with any source."""
    if mesh.everyone.size > 1:
        set_random_states(mesh.first(lambda: random_states(device)), device)
