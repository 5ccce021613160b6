"""Where records go: a file always, TensorBoard and Weights & Biases where they are installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from short_runs import EPOCHS, crash, train

import forde
from forde.training.writers import TensorBoard, WeightsAndBiases


class Remembers:
    """A writer of one's own."""

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self.closed = 0

    def record(self, record: dict[str, float]) -> None:
        self.epochs.append(record["epoch"])

    def close(self) -> None:
        self.closed += 1


def test_own_writer_sees_every_epoch_and_is_closed() -> None:
    writer = Remembers()
    train(writers=[writer])
    assert writer.epochs == [0.0, 1.0, 2.0] and writer.closed == 1


def test_writer_is_closed_after_a_crash(tmp_path: Path) -> None:
    writer = Remembers()
    crash(tmp_path / "run", 8, writers=[writer])
    assert writer.epochs == [0.0] and writer.closed == 1


def test_lines_are_valid_json(tmp_path: Path) -> None:
    train(tmp_path / "run", method="deep-ensemble")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    assert len(records) == EPOCHS and records[0]["bandwidth"] is None


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            calls.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, step))

        def flush(self) -> None: ...

        def close(self) -> None:
            calls.append("closed")

    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    run = tmp_path / "run"
    train(run, writers=[TensorBoard(run / "tensorboard")])
    assert calls[0] == str(run / "tensorboard") and calls[-1] == "closed"
    assert ("loss", 2) in calls and ("lr", 0) in calls


def test_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, record: dict[str, float], step: int) -> None:
            calls.append((sorted(record)[0], step))

        def finish(self) -> None:
            calls.append("finished")

    fake = ModuleType("wandb")
    fake.init = lambda **options: calls.append(options) or Run()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    train(writers=[WeightsAndBiases(project="robustness", id="a", resume="allow")])
    assert calls == [
        {"project": "robustness", "id": "a", "resume": "allow"},
        *(("bandwidth", epoch) for epoch in range(EPOCHS)),
        "finished",
    ]


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("torch.utils.tensorboard", lambda: TensorBoard("x"), "tensorboard"),
        ("wandb", WeightsAndBiases, "wandb"),
    ],
)
def test_missing_package_is_one_sentence(module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(forde.FordeError, match=rf"pip install 'forde\[{extra}\]'"):
        make()
