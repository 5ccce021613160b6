"""A training of a fraction of a second with all in it that a checkpoint must bring back, and how to compare two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import forde
from forde.training.history import History
from forde.training.loop import Loop

EPOCHS, STEPS = 3, 6
"""Of each run, and of each epoch."""


def network() -> nn.Module:
    """With running statistics and random numbers of its own."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data(n: int = 16 * STEPS + 3) -> tuple[Tensor, Tensor]:
    y = torch.arange(n) % 3
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(0)) + y.unsqueeze(1), y


def ensemble(members: int = 2) -> forde.Ensemble:
    return forde.Ensemble(network, members)


def train(run: Path | None = None, trained: forde.Ensemble | None = None, given: Any = None, **options: Any) -> History:
    """One run, by default with a checkpoint after every step if it has a folder."""
    defaults: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 16, "verbose": False, "checkpoint_minutes": 0.0}
    method = options.pop("method", "forde-pca")
    trained = ensemble() if trained is None else trained
    return forde.fit(trained, method, data() if given is None else given, run=run, **{**defaults, **options})


def result(run: Path) -> bytes:
    """All tensors of the finished run, to the last bit."""
    return (run / "ensemble" / "model.safetensors").read_bytes()


def metrics(run: Path) -> list[dict[str, float]]:
    """Records of the run but for the time they took."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


class StopAfter:
    """Instead of `Loop._step`: raises after some steps, as a crash of the user's own code would, on any engine."""

    def __init__(self, steps: int) -> None:
        self.left, self.step = steps, Loop._step

    def __get__(self, loop: Loop, owner: type[Loop]) -> Any:
        return lambda *batch: self.take(loop, *batch)

    def take(self, loop: Loop, *batch: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the plug was pulled")
        self.step(loop, *batch)


def crash(run: Path, steps: int, **options: Any) -> None:
    """A run that dies in a step after this many whole ones."""
    trained = options.pop("trained", None) or ensemble()
    step = Loop._step
    Loop._step = StopAfter(steps)  # type: ignore[method-assign,assignment]
    try:
        train(run, trained, **options)
    except RuntimeError as error:
        assert "plug" in str(error)
    else:
        raise AssertionError("the run was to be interrupted")
    finally:
        Loop._step = step  # type: ignore[method-assign]
