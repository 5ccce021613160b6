"""`forde tune` by the executable: what it writes, and that no trial is lost or done twice, whatever stops it."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from executable import WORDS, done, environment, forde
from small_runs import SMALL, Result, quantities, written

OPTIONS = ("tune", "--data", "digits", "--hidden", 4, "--members", 2, "--device", "cpu", "--engine", "eager")
STUDY = (*OPTIONS, "--epochs", 12, "--trials", 4, "--out", "t", "--json", "t.json")


def stopped_within_a_trial(folder: Path, number: int, by: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Start the study, and send the signal once the trial of this number trains."""
    process = subprocess.Popen(
        [*WORDS, *map(str, STUDY)], cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    begun = folder / "t" / "trials" / f"{number:04d}" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not begun.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(by)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(STUDY, process.returncode, out, err)


def trials_of(folder: Path) -> list[optuna.trial.FrozenTrial]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{folder / 't' / 'study.db'}"
    return optuna.load_study(study_name="forde", storage=storage).get_trials()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A study in one go."""
    folder = tmp_path_factory.mktemp("whole")
    done(*STUDY, cwd=folder)
    found: dict[str, Any] = json.loads((folder / "t.json").read_text())
    return {**found, "folder": folder}


def test_what_it_writes(whole: dict[str, Any]) -> None:
    folder = whole["folder"]
    assert whole["command"] == "forde tune" and whole["counts"]["running"] == 0
    assert whole["counts"]["finished"] + whole["counts"]["pruned"] == 4
    kept = json.loads((folder / "t" / "tuning.json").read_text())
    assert kept["trials"] == whole["trials"] and kept["why"] == whole["why"]
    assert (folder / "t" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    chosen = next(one for one in whole["trials"] if one["number"] == whole["chosen"])
    assert not chosen["values"] or chosen["clean_difference"]["value"] <= 0.01


def test_the_command_that_it_ends_with_trains_the_choice(whole: dict[str, Any]) -> None:
    words = shlex.split(whole["train"])
    assert words[:2] == ["forde", "train"] and words[-2:] == ["--out", "runs/tuned"]
    done(*words[1:], cwd=whole["folder"])
    training = json.loads((whole["folder"] / "runs" / "tuned" / "config.json").read_text())["training"]
    assert training["epochs"] == 12
    assert training["method"]["name"] == ("forde" if whole["values"] else "deep-ensemble")
    if whole["values"]:
        assert training["method"]["repulsion_weight"] == whole["values"]["strength"]


def test_the_same_command_again_does_nothing_twice(whole: dict[str, Any]) -> None:
    result = forde(*STUDY, cwd=whole["folder"])
    assert result.returncode == 0 and " of " not in result.stderr.split("frontier in")[0]
    assert json.loads((whole["folder"] / "t.json").read_text())["trials"] == whole["trials"]


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_stopped_and_taken_up(whole: dict[str, Any], tmp_path: Path, by: signal.Signals, code: int) -> None:
    stopped = stopped_within_a_trial(tmp_path, 1, by)
    assert stopped.returncode == code, stopped.stderr
    assert "Traceback" not in stopped.stderr
    if by != signal.SIGKILL:
        assert f"tuning stopped by {by.name}" in stopped.stderr and "the same command goes on" in stopped.stderr
    result = forde(*STUDY, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "t.json").read_text())
    counts = found["counts"]
    assert counts["finished"] + counts["pruned"] == 4 and counts["running"] == 0 and counts["lost"] == 1
    # None is lost: the one that was stopped is done again, with its values, and comes to what it would have come to.
    lost = [one for one in trials_of(tmp_path) if one.state == optuna.trial.TrialState.FAIL]
    ended = [one for one in trials_of(tmp_path) if one.state.is_finished() and one not in lost]
    assert [one.params for one in ended].count(lost[0].params) == 1 and lost[0].params
    assert [scores(one) for one in found["trials"][:2]] == [scores(one) for one in whole["trials"][:2]]
    # And none is done twice.
    assert len({json.dumps(one.params) for one in ended if one.params}) == 3
    assert not any((tmp_path / "t" / "trials").iterdir())


def scores(trial: dict[str, Any]) -> tuple[Any, ...]:
    return trial["values"], trial["clean_nll"], trial["corrupted_nll"]


def test_tables_seeds_and_a_storage_elsewhere(call: Callable[..., Result], tmp_path: Path) -> None:
    data = written(tmp_path / "t.csv", quantities())
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    result = call("tune", "--data", data, *SMALL, "--trials", 2, "--seeds", 2, "--storage", storage, "--study", "mine",
                  "--search", "strength=1:30,lr", "--out", tmp_path / "o", "--json", "-")  # fmt: skip
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert told["searched"]["lr"] == pytest.approx([0.0003, 0.009]) and told["searched"]["strength"] == [1, 30]
    assert told["settings"]["seeds"] == 2
    assert (tmp_path / "shared.db").exists() and not (tmp_path / "o" / "study.db").exists()
    assert "1/2 trial 0, deep ensemble" in result.err and "--data " + str(data) in told["train"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--search", "strenght"), "did you mean 'strength'?"),
        (("--search", "alpha"), "does not search the strength"),
        (("--data", "digitz"), "did you mean 'digits'?"),
        (("--model", "mpl"), "did you mean 'mlp'?"),
        (("--model", "no_module:f"), "--model no_module:f: the module could not be imported"),
        (("--validation", "0.0001"), "leaves 898 for training and 0 for validation"),
        (("--out", "{tmp}/run"), "holds a run, but a folder for a study was expected"),
        (("--out", "{tmp}/file"), "is a file, but a folder for a study was expected"),
        (("--storage", "nonsense://x"), "the study cannot be opened in --storage"),
        (("--set", "tuning.trial=3"), "did you mean 'tuning.trials'?"),
        (("--engine", "fast"), "unknown engine 'fast'"),
    ],
)
def test_mistakes(call: Callable[..., Result], tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "file").touch()
    given = [word.format(tmp=tmp_path) for word in arguments]
    result = call(*OPTIONS, "--epochs", 1, "--trials", 2, "--out", tmp_path / "t", *given)
    assert result.code == 1 and result.err.count("\n") == 1 and complaint in result.err, result.err


def test_other_settings_need_another_folder(whole: dict[str, Any], call: Callable[..., Result]) -> None:
    given = [str(whole["folder"] / word) if word in ("t", "t.json") else word for word in STUDY]
    result = call(*given, "--epochs", 3)
    assert result.code == 1 and "begun with epochs 12, but 3 was given; give the same, or another --out" in result.err
