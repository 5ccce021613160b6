"""A run that is given more epochs comes to what the longer run would have been, bit for bit, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import STEPS, crash, data, ensemble, metrics, network, result, train
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR

import forde
from forde.training.outcome import Outcome


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


HELD = data(30)
FREE: dict[str, dict[str, Any]] = {
    "constant": {},
    "steps": {"scheduler": lambda optimizer: StepLR(optimizer, 1, gamma=0.5)},
    "plateau": {"scheduler": lambda o: ReduceLROnPlateau(o, patience=0, factor=0.5), "validation": HELD},
    "the best epoch": {"validation": HELD, "patience": 9},
    "the last epoch": {"validation": HELD, "restore_best": False},
    "averages": {"ema": 0.9},
    "stacked": {"engine": "vectorized", "method": "forde-identity"},
}
LONG = 4


def go_on(run: Path, epochs: int, **options: Any) -> forde.training.History:
    return train(run, epochs=epochs, resume=True, checkpoint_minutes=None, **{"optimizer": adam, **options})


@pytest.mark.parametrize("case", FREE)
def test_it_is_the_longer_run(case: str, tmp_path: Path) -> None:
    options = FREE[case]
    whole = go_on(tmp_path / "whole", LONG, **options)
    go_on(tmp_path / "run", 2, **options)
    assert len(metrics(tmp_path / "run")) == 2 and result(tmp_path / "run") != result(tmp_path / "whole")
    trained = ensemble()
    longer = go_on(tmp_path / "run", LONG, trained=trained, **options)
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert (len(longer), longer.best_epoch, longer.stopped) == (LONG, whole.best_epoch, None)
    loaded = forde.Ensemble.load(tmp_path / "run" / "ensemble", network)
    assert torch.equal(trained.predict(data()[0]).probs, loaded.predict(data()[0]).probs)


def test_again_and_again_and_interrupted(tmp_path: Path) -> None:
    go_on(tmp_path / "whole", LONG)
    run = tmp_path / "run"
    for epochs in (1, 2):
        go_on(run, epochs)
    before = result(run)
    crash(run, STEPS + 2, epochs=LONG, resume=True, optimizer=adam)
    outcome = Outcome.read(run)
    assert result(run) == before and outcome is not None and outcome.epochs == 2, "what there was is still there"
    go_on(run, LONG)
    assert result(run) == result(tmp_path / "whole") and metrics(run) == metrics(tmp_path / "whole")
    config = json.loads((run / "config.json").read_text())
    assert config["training"]["epochs"] == LONG and config["first_epochs"] == 1
    assert len(list((run / "checkpoints").glob("*.json"))) == 1
    records = go_on(run, LONG).records
    assert len(records) == LONG, "it has finished, and is loaded"


def test_one_that_was_interrupted_may_become_longer_at_once(tmp_path: Path) -> None:
    go_on(tmp_path / "whole", LONG)
    crash(tmp_path / "run", 3, epochs=2, optimizer=adam)
    go_on(tmp_path / "run", LONG)
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_killed_between_the_ensemble_and_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on(tmp_path / "whole", LONG)
    go_on(tmp_path / "run", 2)

    def killed(outcome: Outcome, folder: Path) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Outcome, "write", killed)
        go_on(tmp_path / "run", LONG)
    assert len(go_on(tmp_path / "run", LONG)) == LONG
    outcome = Outcome.read(tmp_path / "run")
    assert outcome is not None and outcome.epochs == LONG and result(tmp_path / "run") == result(tmp_path / "whole")


def test_one_that_ended_of_its_own_accord_has_ended(tmp_path: Path) -> None:
    options = {"validation": HELD, "patience": 1, "lr": None, "optimizer": lambda p: torch.optim.Adam(p, lr=1.0)}
    first = go_on(tmp_path / "run", 30, **options)
    assert first.stopped is not None and len(first) < 30
    again = go_on(tmp_path / "run", 60, **options)
    assert again.records == first.records and again.stopped == first.stopped
    assert not (tmp_path / "run" / "checkpoints").exists()


def cosine(optimizer: Any) -> Any:
    return CosineAnnealingLR(optimizer, 2)


def warm_up(optimizer: Any) -> Any:
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, total_iters=1), CosineAnnealingLR(optimizer, 2)], [1])


def of_length(epochs: int) -> Callable[[Any], Any]:
    return lambda optimizer: CosineAnnealingLR(optimizer, epochs)


ENDING: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "the default": ({"optimizer": None, "lr": 0.1}, {}, "its learning rate falls over all of its epochs"),
    "of all steps": (
        {"scheduler": CosineAnnealingLR}, {}, "falls over all of its epochs"
    ),
    "cosine": ({"scheduler": cosine}, {}, "its CosineAnnealingLR ends with it"),
    "a part": ({"scheduler": warm_up}, {}, "its CosineAnnealingLR ends with it"),
    "another cosine": ({"scheduler": of_length(7)}, {"scheduler": of_length(9)}, r"another one \(training.scheduler"),
    "swag": ({"method": "swag", "optimizer": None}, {}, "swag makes its members when training is done"),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDING)
@pytest.mark.parametrize("finished", [True, False])
def test_a_schedule_that_ends_is_refused_in_a_sentence(case: str, finished: bool, tmp_path: Path) -> None:
    options, changed, why = ENDING[case]
    run = tmp_path / "run"
    if finished:
        go_on(run, 2, **options)
    else:
        crash(run, 2, epochs=2, **{"optimizer": adam, **options})
    before = {path: path.read_bytes() for path in run.glob("*.json")}
    with pytest.raises(forde.FordeError, match=f"epochs = 2 and cannot go on to 4, for .*{why}.*; load") as raised:
        go_on(run, LONG, **{**options, **changed})
    assert str(raised.value).count("\n") == 0
    assert {path: path.read_bytes() for path in run.glob("*.json")} == before


def test_what_else_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    go_on(run, 2)
    with pytest.raises(forde.FordeError, match=r"training.epochs = 2, but 1 was given"):
        go_on(run, 1)
    with pytest.raises(forde.FordeError, match=r"training.batch_size = 16, but 8 was given"):
        go_on(run, LONG, batch_size=8)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(forde.FordeError, match="cannot go on to 4, for its last checkpoint was not kept"):
        go_on(run, LONG)
    assert len(go_on(run, 2)) == 2


def test_its_ensemble_is_trained_further_in_another_folder(tmp_path: Path) -> None:
    """What the error advises."""
    train(tmp_path / "run", epochs=2)
    loaded = forde.Ensemble.load(tmp_path / "run" / "ensemble", network)
    before = loaded.predict(data()[0]).probs
    further = train(tmp_path / "further", loaded, epochs=2, lr=0.01)
    assert further["lr"][0] == pytest.approx(0.01) and not torch.equal(loaded.predict(data()[0]).probs, before)
