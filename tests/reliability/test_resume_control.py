"""Validation and what follows from it come out of an interrupted run as of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import crash, data, metrics, result, train
from torch import Tensor
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import forde
from forde.training.outcome import Outcome

STEPS = 4
"""Of an epoch, with a quarter of the data held out."""


def mislabelled() -> tuple[Tensor, Tensor]:
    """Data whose validation soon gets worse."""
    x, y = data()
    flipped = torch.rand(len(y), generator=torch.Generator().manual_seed(1)) < 0.5
    return x, torch.where(flipped, (y + 1) % 3, y)


def compare(folder: Path, interruptions: tuple[int, ...], **options: Any) -> Outcome:
    options = {"given": mislabelled(), "epochs": 12, "lr": 0.3, **options}
    whole, broken = folder / "whole", folder / "broken"
    train(whole, **options)
    for steps in interruptions:
        crash(broken, steps, resume=True, **options)
    history = train(broken, resume=True, **options)
    assert result(broken) == result(whole) and metrics(broken) == metrics(whole)
    outcome = Outcome.read(whole)
    assert outcome is not None and outcome == Outcome.read(broken)
    assert (history.stopped, history.best_epoch, len(history)) == (outcome.stopped, outcome.best_epoch, outcome.epochs)
    for name in ("best", "last"):
        paths = [run / name / "model.safetensors" for run in (whole, broken)]
        assert paths[0].exists() == paths[1].exists()
        assert not paths[0].exists() or paths[0].read_bytes() == paths[1].read_bytes()
    return outcome


@pytest.mark.parametrize(
    ("engine", "interruptions"),
    [("eager", (STEPS,)), ("vectorized", (2,)), ("vectorized", (3 * STEPS + 1, 2))],
)
def test_early_stopping(engine: str, interruptions: tuple[int, ...], tmp_path: Path) -> None:
    outcome = compare(tmp_path, interruptions, validation=0.25, patience=2, engine=engine)
    assert outcome.stopped is not None and outcome.epochs < 12
    assert (tmp_path / "whole" / "last").exists()


def head_faster(named_parameters: Any) -> torch.optim.Optimizer:
    head = [p for name, p in named_parameters if name.startswith("4.")]
    body = [p for name, p in named_parameters if not name.startswith("4.")]
    return torch.optim.SGD([{"params": body, "lr": 0.01}, {"params": head}], lr=0.1, momentum=0.9)


def warm_up(optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
    first = LinearLR(optimizer, 0.1, total_iters=5)
    return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, total_steps - 5)], [5])


OPTIMIZATION: dict[str, dict[str, Any]] = {
    "one cycle": {"scheduler": lambda o, n: OneCycleLR(o, 0.3, total_steps=n)},
    "warm-up": {"scheduler": warm_up},
    "plateau": {
        "scheduler": lambda o: ReduceLROnPlateau(o, patience=0),
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.3),
        "validation": 0.25,
    },
    "in parts, averaged": {"accumulate": 2, "ema": 0.7, "validation": 0.25},
    "named": {"optimizer": head_faster, "clip_norm": 0.3},
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # torch 2.6 warns of itself
@pytest.mark.parametrize("engines", [("eager", "eager"), ("vectorized", "vectorized")], ids="-".join)
@pytest.mark.parametrize("case", OPTIMIZATION)
def test_optimization(case: str, engines: tuple[str, str], tmp_path: Path) -> None:
    """Within an epoch, at its end, and several times."""
    options = {"given": mislabelled(), "epochs": 4, **OPTIMIZATION[case]}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole, engine=engines[0], **options)
    for steps in (STEPS + 2, 2):
        crash(broken, steps, resume=True, engine=engines[1], **options)
    train(broken, resume=True, engine=engines[1], **options)
    assert result(broken) == result(whole) and metrics(broken) == metrics(whole)


CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "when it is stepped": (
        {"scheduler": lambda o: StepLR(o, 1), "scheduler_every": "step"}, {"scheduler": lambda o: StepLR(o, 1)},
        'scheduler_every = "step", but null was given',
    ),
    "how long a gradient may be": ({"clip_norm": 1.0}, {"clip_norm": 2.0}, "training.clip_norm = 1.0, but 2.0"),
    "how slow the average is": ({"ema": 0.9}, {"ema": 0.8}, "training.ema = 0.9, but 0.8"),
    "whether there is a limit": ({}, {"clip_norm": 2.0}, "training.clip_norm = null, but 2.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_other_optimization_is_refused_by_name(case: str, tmp_path: Path) -> None:
    first, second, message = CHANGED[case]
    crash(tmp_path / "run", 1, **first)
    with pytest.raises(forde.FordeError, match=message):
        train(tmp_path / "run", resume=True, **second)


def test_the_best_epoch_of_rare_checkpoints(tmp_path: Path) -> None:
    """The best epoch is between two checkpoints, and comes out again when it is repeated."""
    outcome = compare(
        tmp_path, (7 * STEPS + 1,), validation=0.25, checkpoint_minutes=None, checkpoint_every=3, restore_best=False
    )
    assert outcome.best_epoch is not None and (tmp_path / "whole" / "best").exists()
