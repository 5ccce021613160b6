"""Where the reference numbers are, and how close to them is close enough.

The folder is `FORDE_GOLDEN`, or the project's own copy. Its files were made by the authors' code;
tests/data/golden/forde/README.md describes every array.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

GOLDEN = Path(os.environ.get("FORDE_GOLDEN", Path(__file__).parents[1] / "data" / "golden"))
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Largest error allowed, relative to the largest |value| of the array."""


def names(pattern: str, known: list[str]) -> list[str]:
    """Files present that match, and the known ones that are absent (their tests then skip)."""
    found = {path.stem for path in (GOLDEN / "forde").glob(f"{pattern}.npz")}
    return sorted(found | set(known))


def load(name: str) -> dict[str, Tensor]:
    path = GOLDEN / "forde" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is absent from {GOLDEN}")
    with np.load(path, allow_pickle=False) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}


def check_close(actual: Tensor, expected: Tensor, *, relative: float | None = None, what: str = "") -> None:
    """Largest absolute error, relative to the largest expected value, within the dtype's bound."""
    assert actual.shape == expected.shape, f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    bound = RELATIVE[expected.dtype] if relative is None else relative
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    error = float((actual.to(torch.float64) - expected.to(torch.float64)).abs().max()) if expected.numel() else 0.0
    assert error <= bound * scale, (
        f"{what}: error {error:.3g} of {scale:.3g}, relative {error / (scale or 1):.3g} > {bound}"
    )
