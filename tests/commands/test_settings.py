"""Settings in a file and by `--set`: they are those of flags, they say where they come from, and none runs code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from executable import done, refused
from small_runs import Result

FILE = """
data: digits
model: {hidden: [8, 4], members: 2}
method: {name: forde, rank: 4, alpha: .3}
training: {epochs: 3, lr: 5e-2}
execution: {device: cpu, engine: eager}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(FILE)
    return tmp_path


def settings(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "config.json").read_text())
    return found


def test_flags_count_more_than_set_and_set_more_than_the_file(folder: Path) -> None:
    done("train", "--set", "training.epochs=2", "--config", "run.yaml", "--set", "training.lr=.01", "--lr", "0.02",
         "--out", "r", cwd=folder)  # fmt: skip
    found = settings(folder / "r")
    training = found["training"]
    assert training["epochs"] == 2 and training["optimizer"]["lr"] == 0.02
    assert (
        training["method"]["kernel"]["metric"]["alpha"] == 0.3 and training["method"]["kernel"]["metric"]["rank"] == 4
    )
    assert found["about"]["recipe"]["hidden"] == [8, 4] and found["ensemble"]["n_members"] == 2
    note = found["how"]["note"]
    assert note["settings"]["method"] == {"name": "forde", "alpha": 0.3, "rank": 4, "weight_decay": 5e-4}
    shown = yaml.safe_load(done("config", "r", "--show", cwd=folder))
    assert shown["training"]["epochs"] == 2 and shown["method"]["rank"] == 4 and "out" not in shown["execution"]
    # The same run again: by the command that the folder keeps, and by its settings as a file.
    done(*note["command"].replace("--out r", "--out again").split()[1:], cwd=folder)
    (folder / "shown.yaml").write_text(yaml.safe_dump(shown))
    done("train", "--config", "shown.yaml", "--out", "third", cwd=folder)
    weights = [(folder / name / "ensemble" / "model.safetensors").read_bytes() for name in ("r", "again", "third")]
    assert weights[0] == weights[1] == weights[2]


def test_each_value_says_where_it_is_from(call: Any, folder: Path) -> None:
    result: Result = call("config", "--config", folder / "run.yaml", "--set", "training.epochs=30", "--show")
    lines = [line.strip() for line in result.out.splitlines()]
    assert "epochs: 30  # --set" in lines and f"alpha: 0.3  # {folder / 'run.yaml'}" in lines
    assert "batch_size: 128  # default" in lines and "# out: must be given" in lines
    told = yaml.safe_load(result.out)
    assert told["model"] == {"name": "mlp", "hidden": "8,4", "members": 2} and told["method"]["rank"] == 4
    assert "10 settings of forde train, all known" in call("config", "--config", folder / "run.yaml").out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"trainning": {"epochs": 3}}, "unknown section in {file} 'trainning'; did you mean 'training'?"),
        ({"training": {"epoch": 3}}, "unknown setting in {file} 'training.epoch'; did you mean 'training.epochs'?"),
        ({"training": 3}, "training in {file} is 3, but keys with values were expected"),
        ({"method": {"name": "forde", "alfa": 1}}, "unknown option of forde 'alfa'; did you mean 'alpha'?"),
        ({"model": {"name": {"a": 1}}}, "model.name in {file} is {{'a': 1}}, but one value was expected"),
        ({"model": "os:getcwd"}, "{file} names 'os:getcwd', which is code and not imported because a file names it"),
        (["a"], "holds no sections, but some of data, model, method"),
    ],
    ids=["section", "key", "no keys", "option of the method", "nested", "code", "a list"],
)  # fmt: skip
def test_files_that_are_none(call: Any, folder: Path, change: Any, complaint: str) -> None:
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"data": "digits", **change} if isinstance(change, dict) else change))
    result: Result = call("train", "--config", file, "--epochs", 1, "--out", folder / "r")
    assert result.code == 1 and result.err.count("\n") == 1 and complaint.format(file=file) in result.err
    assert not (folder / "r").exists()


@pytest.mark.parametrize("content", ["a: [", "\t- x", "a: !!python/object/apply:os.getcwd []", "\x00", "&a [*a]"])
def test_text_that_is_no_settings(call: Any, folder: Path, content: str) -> None:
    (folder / "run.yaml").write_text(content)
    result: Result = call("config", "--config", folder / "run.yaml")
    assert result.code == 1 and result.err.startswith("Error: --config") and result.err.count("\n") == 1


def test_mistakes_of_overrides(call: Any, folder: Path) -> None:
    assert "KEY=VALUE was expected" in call("config", "--set", "epochs").err
    assert "did you mean 'method.name'" in call("config", "--set", "method.name.x=1").err
    assert "'train'" in call("config", "--of", "trian").err
    assert "holds no run of forde train" in call("config", folder).err
    assert "cannot be read: No such file" in refused("train", "--config", "none.yaml", cwd=folder)
    wrong = call("train", "--config", folder / "run.yaml", "--set", "training.epochs=x", "--out", folder / "r")
    assert wrong.code == 2 and "--epochs" in wrong.err
