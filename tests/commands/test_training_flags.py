"""What `forde train` can be asked for beside the data: validation, a network of one's own, options of the method."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from executable import done, refused
from small_runs import SMALL, Forde, Result, quantities, recipe_of, written

import forde
from forde.training.splitting import drawn

NETWORKS = '''
"""Networks of a user."""
import torch


def small():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def wrong():
    return torch.nn.Linear(3, 10)
'''


class TestValidation:
    def test_a_share_is_held_out_of_training_and_of_the_statistics(self, train: Forde, tmp_path: Path) -> None:
        frame = quantities()
        result = train(written(tmp_path / "t.csv", frame), tmp_path / "r", *SMALL, "--validation", 0.25)
        assert result.code == 0 and "45 rows" in result.out and "15 others validate" in result.out
        kept, held = drawn(60, 15, seed=0)
        units = recipe_of(tmp_path / "r")["standardisation"]
        assert units["target_mean"] == pytest.approx(frame["y"][kept].mean(), rel=1e-5)
        run = forde.load_run(tmp_path / "r")
        best = min(record["validation_nll"] for record in run.records)
        prediction = run.predict(frame.iloc[held])
        assert isinstance(prediction, forde.RegressionPrediction)
        scale = units["target_scale"]
        found = forde.evaluation.score(prediction, torch.tensor(frame["y"][held].to_numpy(), dtype=torch.float64))
        assert found["nll"] - np.log(scale) == pytest.approx(best, abs=1e-4)

    def test_patience_stops_and_the_metric_is_that_asked_for(self, train: Forde, tmp_path: Path) -> None:
        options = ("--validation", "test", "--patience", 1, "--monitor", "accuracy", "--epochs", 40, "--lr", 0.3)
        result = train("digits", tmp_path / "r", *SMALL, *options)
        assert result.code == 0 and "899 others validate" in result.out and "stopped early, as" in result.out
        outcome = json.loads((tmp_path / "r" / "outcome.json").read_text())
        assert outcome["epochs"] == outcome["best_epoch"] + 2 < 40
        accuracy = [record["validation_accuracy"] for record in forde.load_run(tmp_path / "r").records]
        assert accuracy.index(max(accuracy)) == outcome["best_epoch"]

    def test_other_data(self, train: Forde, tmp_path: Path) -> None:
        written(tmp_path / "new.csv", quantities()[["y", "b", "a"]].iloc[:20])
        result = train(
            written(tmp_path / "t.csv", quantities()), tmp_path / "r", *SMALL, "--validation", tmp_path / "new.csv"
        )
        assert result.code == 0 and "20 others validate" in result.out

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (("--patience", 3), "--patience 3 is about validation data, and there is none; add --validation 0.2"),
            (("--validation", 1.5), "--validation is 1.5, but a share between 0 and 1"),
            (("--validation", "none.csv"), "'none.csv' does not exist"),
            (("--validation", "valid"), "unknown split of"),
            (("--validation", 0.2, "--monitor", "nnl"), "did you mean 'nll'?"),
            (("--optimizer", "adma"), "did you mean 'adam'?"),
            (("--method", "forde", "--strength", "3", "--set", "method.rnak=3"), "did you mean 'rank'?"),
            (("--strength", "3"), "unknown option of forde-pca 'strength'"),
        ],
    )
    def test_mistakes(self, train: Forde, tmp_path: Path, arguments: tuple[object, ...], complaint: str) -> None:
        result = train(written(tmp_path / "t.csv", quantities()), tmp_path / "r", *SMALL, *arguments)
        assert result.code == 1 and complaint in result.err and result.err.count("\n") == 1
        assert not (tmp_path / "r" / "ensemble").exists()


class TestOwnNetworks:
    """By the executable, which does not look for modules where it is started, unless told to."""

    def test_named_by_whoever_types_the_command(self, tmp_path: Path) -> None:
        (tmp_path / "my_networks.py").write_text(NETWORKS)
        options = ("--epochs", 1, "--members", 2, "--device", "cpu", "--engine", "eager")
        done("train", "--data", "digits", "--model", "my_networks:small", "--out", "r", *options, cwd=tmp_path)
        said = refused("evaluate", "r", cwd=tmp_path)
        assert "built by 'my_networks:small', which is code and not imported" in said and "--model" in said
        scores = done("evaluate", "r", "--model", "my_networks:small", "--json", "-", cwd=tmp_path)
        assert 0.1 < json.loads(scores)["clean"]["accuracy"]["value"] <= 1
        for name, complaint in (
            ("my_networks:smal", "did you mean 'small'"), ("my_network:small", "No module named 'my_network'"),
            ("my_networks.small", "package.module:function was expected"),
            ("my_networks:wrong", "give it inputs of the size that it was built for"),
        ):  # fmt: skip
            assert complaint in refused(
                "train", "--data", "digits", "--model", name, "--out", "s", *options, cwd=tmp_path
            )

    def test_evaluated_from_elsewhere(self, train: Forde, call: Callable[..., Result], tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
        """A run knows its data by a path that holds anywhere."""
        folder = tmp_path / "mine"
        folder.mkdir()
        for split in ("train", "test"):
            written(folder / f"{split}.csv", quantities())
        monkeypatch.chdir(tmp_path)
        assert train("mine", tmp_path / "r", *SMALL).code == 0
        monkeypatch.chdir(folder)
        result = call("evaluate", tmp_path / "r")
        assert result.code == 0 and "60 samples of mine (test)" in result.out, result


class TestMethodOptions:
    def test_by_flag_and_by_name(self, train: Forde, tmp_path: Path) -> None:
        options = ("--method", "forde", "--strength", 3, "--alpha", 0.2, "--prior", "empcov", "--set", "method.rank=5")
        assert train("digits", tmp_path / "r", *SMALL, *options).code == 0
        method = json.loads((tmp_path / "r" / "config.json").read_text())["training"]["method"]
        assert method["repulsion_weight"] == 3 and method["kernel"]["metric"]["alpha"] == 0.2
        assert method["kernel"]["metric"]["rank"] == 5 and "EmpCov" in json.dumps(method["prior"])

    def test_adam_for_classes(self, train: Forde, tmp_path: Path) -> None:
        assert train("digits", tmp_path / "r", *SMALL, "--optimizer", "adam").code == 0
        optimizer = json.loads((tmp_path / "r" / "config.json").read_text())["training"]["optimizer"]
        assert optimizer["type"] == "Adam" and optimizer["lr"] == 0.003


def test_numbers_as_json(call: Callable[..., Result], tmp_path: Path) -> None:
    result = call("train", "--data", "digits", "--out", tmp_path / "r", *SMALL, "--json", "-")
    told = json.loads(result.out)
    assert told["command"] == "forde train" and len(told["epochs"]) == 2 and "digits: 898 images" in result.err
    assert told["settings"]["training"]["epochs"] == 2 and told["best_epoch"] is None
