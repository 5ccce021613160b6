"""Validation and what follows from it come out of an interrupted run as of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import crash, data, metrics, result, train
from torch import Tensor

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


def test_the_best_epoch_of_rare_checkpoints(tmp_path: Path) -> None:
    """The best epoch is between two checkpoints, and comes out again when it is repeated."""
    outcome = compare(
        tmp_path, (7 * STEPS + 1,), validation=0.25, checkpoint_minutes=None, checkpoint_every=3, restore_best=False
    )
    assert outcome.best_epoch is not None and (tmp_path / "whole" / "best").exists()
