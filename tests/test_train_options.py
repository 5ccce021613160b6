"""`forde train`: every option reaches the run, and what is printed is what the run says."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

import forde
from forde.cli import app
from forde.models import MLP


def weight_decay(seen: dict[str, Any]) -> float:
    (prior,) = seen["method"].priors
    return prior.weight_decay


def width(seen: dict[str, Any]) -> int:
    return next(m.out_features for m in seen["ensemble"].members[0].modules() if isinstance(m, nn.Linear))


def made_optimizer(seen: dict[str, Any]) -> torch.optim.Optimizer:
    return seen["optimizer"]([torch.zeros(1)])


OPTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], Any]] = {
    "--epochs": ("2", lambda seen: seen["epochs"], 2),
    "--method": ("forde", lambda seen: seen["method"].name, "forde"),
    "--strength": ("3", lambda seen: seen["method"].repulsion_weight, 3.0),
    "--alpha": ("0.2", lambda seen: seen["method"].kernel.metric.alpha, 0.2),
    "--prior": ("empcov", lambda seen: [type(prior) for prior in seen["method"].priors], [forde.priors.EmpCov]),
    "--members": ("3", lambda seen: seen["ensemble"].n_members, 3),
    "--hidden": ("9,7", width, 9),
    "--batch-size": ("100", lambda seen: seen["batch_size"], 100),
    "--optimizer": ("adam", lambda seen: type(made_optimizer(seen)), torch.optim.Adam),
    "--lr": ("0.03", lambda seen: made_optimizer(seen).param_groups[0]["lr"], 0.03),
    "--weight-decay": ("0.002", weight_decay, 0.002),
    "--validation": ("0.2", lambda seen: len(seen["validation"].data) > 100, True),
    "--patience": ("4", lambda seen: seen["validation"].patience, 4),
    "--monitor": ("accuracy", lambda seen: seen["validation"].monitor, "accuracy"),
    "--seed": ("7", lambda seen: (seen["seed"], seen["ensemble"].seed), (7, 7)),
    "--augment": ("", lambda seen: seen["batches"].augmentation, forde.Augmentation()),
    "--device": ("cpu", lambda seen: str(seen["device"]), "cpu"),
    "--precision": ("bf16", lambda seen: seen["precision"], "bf16"),
    "--engine": ("eager", lambda seen: seen["engine"], "eager"),
    "--memory": ("balanced", lambda seen: seen["execution"].memory, "balanced"),
    "--checkpoint-every": ("2", lambda seen: seen["checkpoint"].every, 2),
    "--checkpoint-minutes": ("5", lambda seen: seen["checkpoint"].minutes, 5.0),
    "--keep": ("3", lambda seen: seen["checkpoint"].keep, 3),
    "--non-finite": ("skip", lambda seen: seen["execution"].non_finite, "skip"),
    "--resume": ("", lambda seen: seen["resume"], True),
    "--mesh": ("1x1", lambda seen: tuple(seen["execution"].mesh), (1, 1)),
}
ELSEWHERE = {
    "--data", "--target", "--task", "--out", "--model", "--tensorboard", "--data-dir", "--config", "--set", "--json",
    "--test", "--drop",
}  # fmt: skip
"""Options that other tests here or in other files look at."""


class CalledError(Exception):
    """Raised in place of training."""


@pytest.fixture
def fit_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What the command calls `forde.fit` with, given these arguments."""
    seen: dict[str, Any] = {}
    signature = inspect.signature(forde.fit)

    def noting(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        seen.update(bound.arguments)
        raise CalledError

    def run(*arguments: str) -> dict[str, Any]:
        with pytest.raises(CalledError):
            invoke(tmp_path / "run", *arguments)
        return seen

    monkeypatch.setattr(forde, "fit", noting)
    return run


def invoke(run: Path, *arguments: str) -> str:
    options = ["--data", "digits", "--run", str(run), "--epochs", "1", "--hidden", "4", "--device", "cpu"]
    result = CliRunner().invoke(app, ["train", *options, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_option_reaches_the_run(fit_with: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    seen = fit_with(*(word for option, (value, _, _) in OPTIONS.items() for word in (option, value) if word))
    found = {option: look(seen) for option, (_, look, _) in OPTIONS.items()}
    assert found == {option: expected for option, (_, _, expected) in OPTIONS.items()}
    assert Path(seen["run"]) == tmp_path / "run"


def test_every_option_is_looked_at() -> None:
    command = get_command(app).commands["train"]  # type: ignore[attr-defined]
    known = {parameter.opts[0] for parameter in command.params}
    missing = known - set(OPTIONS) - ELSEWHERE
    assert not missing, f"add {sorted(missing)} to OPTIONS, with how it shows in what fit is given"


def test_what_is_printed_is_the_last_record(tmp_path: Path) -> None:
    printed = invoke(tmp_path / "run", "--epochs", "3", "--members", "2")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert float(re.search(r"loss ([\d.]+) after 3 epochs", printed)[1]) == pytest.approx(records[-1]["loss"], abs=1e-4)
    assert abs(records[-1]["loss"] - records[0]["loss"]) > 1e-3
    assert forde.Ensemble.load(tmp_path / "run" / "ensemble", lambda: MLP(64, [4], 10)).n_members == 2


@pytest.mark.parametrize("model", ["mlp", "resnet18", "preact_resnet18", "wrn16_4"])
def test_models_are_those_of_their_names(model: str, fit_with: Callable[..., dict[str, Any]]) -> None:
    network = fit_with("--model", model, "--members", "1")["ensemble"].members[0]
    expected = MLP(64, [4], 10) if model == "mlp" else getattr(forde.models, model)(10, channels=1)
    shapes = lambda net: {name: p.shape for name, p in net.named_parameters()}  # noqa: E731
    assert type(network) is type(expected) and shapes(network) == shapes(expected)
