"""Small trainings for the methods that make all members of one network, and runs of them that break off."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import forde
from forde.data import Images, from_arrays
from forde.methods.plan import Plan
from forde.training.loop import Loop


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))


def small_ensemble(members: int, seed: int = 0) -> forde.Ensemble:
    return forde.Ensemble(network, members, seed=seed)


def small_data(n: int = 87) -> tuple[Tensor, Tensor]:
    """Five steps of 16 in an epoch, and a rest."""
    y = torch.arange(n) % 3
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(0)) + 0.7 * y.unsqueeze(1), y


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.deep, self.head = nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(self.deep(x)).mean((-2, -1)))


def image_data(n: int = 40) -> Images:
    generator = np.random.default_rng(0)
    return from_arrays(generator.integers(0, 256, (n, 8, 8, 3), np.uint8), np.arange(n) % 3, classes=("a", "b", "c"))


def bits(ensemble: forde.Ensemble) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}


def member_bits(ensemble: forde.Ensemble) -> dict[str, list[Any]]:
    return {name: tensor.tolist() for name, tensor in ensemble.state_dict().items()}


@dataclass
class Interruption:
    """Where a run breaks off: after so many steps, or while members are made."""

    steps: int = sys.maxsize
    making_members: bool = False


def compare_interrupted(method: str, folder: Path, interruption: Interruption, **options: Any) -> int:
    """Train whole, and broken off and resumed; both must come to the same. Returns the steps of the second start."""
    whole, broken = folder / "whole", folder / "broken"
    defaults = {"epochs": 6, "batch_size": 16, "verbose": False, "engine": "eager", "checkpoint_minutes": 0.0}
    given = {**defaults, **options}
    step, steps = Loop._step, 0

    def counted(loop: Loop, *batch: Any) -> None:
        nonlocal steps
        if steps == interruption.steps:
            raise RuntimeError("the plug was pulled")
        steps += 1
        step(loop, *batch)

    def broken_off(*_: Any) -> None:
        raise RuntimeError("the plug was pulled")

    def train(run: Path) -> None:
        forde.fit(small_ensemble(3), method, small_data(), run=run, resume=True, **given)

    train(whole)
    plans = [cls for cls in Plan.__subclasses__() if "make_members" in vars(cls)]
    originals = [vars(cls)["make_members"] for cls in plans]
    try:
        Loop._step = counted  # type: ignore[method-assign]
        if interruption.making_members:
            for cls in plans:
                cls.make_members = broken_off  # type: ignore[method-assign]
        try:
            train(broken)
        except RuntimeError as error:
            assert "plug" in str(error)
        else:
            raise AssertionError("the run was to be interrupted")
        for cls, original in zip(plans, originals, strict=True):
            cls.make_members = original  # type: ignore[method-assign]
        interruption.steps, steps = sys.maxsize, 0
        train(broken)
    finally:
        Loop._step = step  # type: ignore[method-assign]
        for cls, original in zip(plans, originals, strict=True):
            cls.make_members = original  # type: ignore[method-assign]
    weights = "ensemble/model.safetensors"
    assert (broken / weights).read_bytes() == (whole / weights).read_bytes()
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (whole, broken)]
    assert len(lines[0]) == len(lines[1]) == given["epochs"]
    return steps
