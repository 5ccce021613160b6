"""`forde train --test`: own data in one piece are trained on, tested and reported; what is held out stays unseen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from executable import done, forde, refused
from PIL import Image
from small_runs import SMALL, Forde, Result, quantities, written

from forde import load_run
from forde.data import load
from forde.training.trained import content_name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and a run that held a quarter of it out."""
    folder = tmp_path_factory.mktemp("held_out")
    written(folder / "t.csv", quantities(80))
    options = ("--test", 0.25, "--validation", 0.2, "--seed", 3)
    said = done("train", "--data", "t.csv", "--out", "r", *SMALL, *options, cwd=folder)
    assert "48 rows" in said and "12 others validate; 20 are held out to test" in said
    assert said.endswith("to test it: forde evaluate r\n")
    return folder


def test_one_file_is_enough_for_scores_and_a_report(folder: Path, tmp_path: Path) -> None:
    told = json.loads(done("evaluate", folder / "r", "--out", tmp_path, "--json", "-", cwd=tmp_path))
    assert told["data"]["samples"] == 20 and told["data"]["split"] == "test"
    done("report", folder / "r", "--out", tmp_path / "r.html", cwd=tmp_path)
    assert "20 test samples of t" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_held_out_rows_are_none_of_those_of_training(folder: Path) -> None:
    run, whole = load_run(folder / "r"), load(folder / "t.csv")
    rest, held = run.test_data(split="train"), run.test_data()
    assert len(rest) == 60 and len(held) == 20
    rows = [*map(tuple, np.column_stack([rest.x, rest.y])), *map(tuple, np.column_stack([held.x, held.y]))]
    assert sorted(rows) == sorted(map(tuple, np.column_stack([whole.x, whole.y]))) and len({*rows}) == 80
    assert content_name(run.test_data()) == content_name(held)
    # Statistics are those of the 48 rows that were trained on, whatever the 20 are.
    mean = run.inputs.standardisation.mean
    assert not np.allclose(mean, whole.x.mean(0), atol=1e-6) and not np.allclose(mean, rest.x.mean(0), atol=1e-6)


def test_data_that_changed_are_not_parted_anew(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "f")
    settings = json.loads((tmp_path / "f" / "r" / "config.json").read_text())
    settings["how"]["note"]["settings"]["data"]["name"] = str(tmp_path / "f" / "t.csv")
    (tmp_path / "f" / "r" / "config.json").write_text(json.dumps(settings))
    done("evaluate", tmp_path / "f" / "r")
    written(tmp_path / "f" / "t.csv", quantities(81))
    said = refused("evaluate", tmp_path / "f" / "r")
    assert "has changed since" in said and "name other data to test on (--data)" in said


def test_folder_of_class_folders(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for place in range(20):
        file = tmp_path / "shapes" / "ab"[place % 2] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(file)
    said = done("train", "--data", "shapes", "--out", "r", *SMALL, "--test", 0.2, cwd=tmp_path)
    assert "16 images of 2 classes; 4 are held out to test" in said
    assert "4 samples of shapes (test)" in done("evaluate", "r", "--corruptions", "fog", cwd=tmp_path)
    assert load_run(tmp_path / "r").test_data().labels.tolist() == [0, 0, 1, 1]


def test_without_it_the_way_on_is_said(tmp_path: Path) -> None:
    written(tmp_path / "t.csv", quantities())
    assert done("train", "--data", "t.csv", "--out", "r", *SMALL, cwd=tmp_path).endswith(
        "to test it: forde evaluate r --data OTHER\n"
    )
    result = forde("report", "r", cwd=tmp_path)
    assert result.returncode == 1 and not (tmp_path / "report.html").exists()
    assert "(forde evaluate RUN --data OTHER), or hold some out (forde train --test 0.2)." in result.stderr


@pytest.mark.parametrize(
    ("data", "share", "complaint"),
    [
        ("digits", 0.2, "has a test split of its own"),
        ("regression-1d", 2, "a share between 0 and 1 was expected"),
        ("regression-1d", 0.001, "leaves 0 of 400 samples for it"),
    ],
)
def test_mistakes(train: Forde, data: str, share: float, complaint: str, tmp_path: Path) -> None:
    result = train(data, tmp_path / "r", *SMALL, "--test", share)
    assert result.code == 1 and complaint in result.err and not (tmp_path / "r").exists()


def test_tuning_looks_at_none_of_it_either(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    options = ("--epochs", 1, "--trials", 2, "--members", 2, "--hidden", "4", "--device", "cpu", "--test", 0.25)
    result = forde("tune", "--data", folder / "t.csv", "--out", "s", *options, "--json", "-", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert "--test 0.25" in told["train"] and "12 validation samples" in told["why"]


def test_noise_is_foreign_to_images(train: Forde, call: Callable[..., Result], tmp_path: Path) -> None:
    """It is made, and easy to tell from digits by its uncertainty."""
    run = tmp_path / "run"
    assert train("digits", run, "--members", "3", "--epochs", "3", "--device", "cpu").code == 0
    ended = call("evaluate", run, "--foreign", "noise", "--json", tmp_path / "scores.json")
    assert ended.code == 0 and "899 foreign inputs of noise" in ended.out
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["foreign"]["auroc"]["total"]["value"] > 0.8
