"""`forde train` in this process, and a table small enough for it to take a moment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

SMALL = ("--hidden", "8", "--members", "2", "--epochs", "2", "--device", "cpu", "--engine", "eager")


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def loss(self) -> float:
        found = re.search(r"loss (\S+) after", self.out)
        assert found is not None, self
        return float(found[1])


Forde = Callable[..., Result]


def quantities(rows: int = 60) -> pd.DataFrame:
    """Float32 numbers, so that a file holds them exactly."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 2)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + 0.1 * generator.normal(size=rows)).astype(np.float32)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})


def written(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False, float_format="%.9g")
    return path


def recipe_of(run: Path) -> dict[str, Any]:
    recipe: dict[str, Any] = json.loads((run / "config.json").read_text())["about"]["recipe"]
    return recipe
