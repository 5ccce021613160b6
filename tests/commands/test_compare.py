"""`forde compare`: differences are those of the samples, and what it says of them follows from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from executable import done
from small_runs import SMALL, Result, quantities, written

import forde
from forde.commands.compare import judged
from forde.evaluation.robustness.comparison import Difference
from forde.metrics.classification import nll_per_sample

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `a` and `b` on digits, and `c` on a table, evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    for name, epochs in (("a", 3), ("b", 8)):
        done("train", "--data", "digits", "--out", name, *SMALL, "--epochs", epochs, cwd=folder)
        done("evaluate", name, "--corruptions", "fog", "--severities", "1,5", cwd=folder)
    (folder / "t").mkdir()
    for split in ("train", "test"):
        written(folder / "t" / f"{split}.csv", quantities())
    for name, epochs in (("c", 2), ("d", 9)):
        done("train", "--data", "t", "--out", name, *SMALL, "--epochs", epochs, cwd=folder)
        done("evaluate", name, cwd=folder)
    return folder


def lines_of(result: Result) -> list[str]:
    return [line.rstrip() for line in result.out.splitlines()]


def test_differences_are_paired(runs: Path) -> None:
    told = json.loads(done("compare", "a", "b", "--json", "-", cwd=runs))
    data = forde.data.load_images("digits", "test")
    labels = torch.tensor(data.labels)
    logits = [forde.load_run(runs / name).predict(data).member_logits for name in "ab"]
    one, two = (nll_per_sample(each, labels).numpy() for each in logits)
    found = told["differences"]["b"]["clean"]["nll"]
    assert found["value"] == pytest.approx((two - one).mean(), abs=1e-6)
    error = (two - one).std() / len(one) ** 0.5
    assert found["error"] == pytest.approx(error, rel=0.15)
    assert error < 0.9 * np.hypot(one.std(), two.std()) / len(one) ** 0.5
    assert told["command"] == "forde compare" and told["first"] == "a" and set(told["clean"]) == {"a", "b"}
    assert set(told["differences"]["b"]["cells"]["fog"]) == {"1", "5"}


def test_what_is_said(call: Call, runs: Path, tmp_path: Path) -> None:
    result = call("compare", runs / "a", runs / "b", "--json", tmp_path / "c.json")
    assert result.code == 0 and "899 samples of digits (test)" in result.out
    clean = next(line for line in lines_of(result) if line.startswith("clean NLL"))
    assert clean.endswith("better") and json.loads((tmp_path / "c.json").read_text())["resamples"] == 1000
    assert any(line.startswith("corrupted Accuracy") for line in lines_of(result))
    assert "NLL in 2 cells of corruption and severity: better in 2, worse in 0, within noise in 0" in result.out
    back = call("compare", runs / "b", runs / "a")
    assert next(line for line in lines_of(back) if line.startswith("clean NLL")).endswith("worse")


def test_quantities(call: Call, runs: Path) -> None:
    result = call("compare", runs / "c", runs / "d")
    lines = [line for line in lines_of(result) if line.startswith("clean")]
    assert lines[0].startswith("clean RMSE") and "corrupted" not in result.out
    assert lines[0].endswith(("better", "within noise"))


def test_digits_are_those_of_the_unit() -> None:
    """A price needs no decimals, and a length in metres more than four."""
    from forde.evaluation.robustness.results import Estimate, table

    row = {"rmse": Estimate(17196.4045, 1323.3463), "nll": Estimate(11.18721, 0.0709)}
    assert "17,196 ± 1,323  11.1872 ± 0.0709" in table("data", {"clean": row})
    assert "0.0000123 ± 0.0000011" in table("data", {"clean": {"rmse": Estimate(1.23e-5, 1.1e-6)}})


@pytest.mark.parametrize(
    ("metric", "value", "error", "word"),
    [("nll", -0.3, 0.1, "better"), ("nll", 0.3, 0.1, "worse"), ("accuracy", 0.3, 0.1, "better"),
     ("nll", -0.19, 0.1, "within noise"), ("epistemic", 0.3, 0.1, "differs"), ("nll", 0.0, 0.0, "within noise")],
)  # fmt: skip
def test_words(metric: str, value: float, error: float, word: str) -> None:
    assert judged(metric, Difference(value, error, value - error, value + error, 0.5)) == word


def test_mistakes(call: Call, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "b", tmp_path / "b", ignore=shutil.ignore_patterns("evaluation"))
    assert f"run: forde evaluate {tmp_path / 'b'}" in call("compare", runs / "a", tmp_path / "b").err
    assert call("evaluate", tmp_path / "b").code == 0
    scores = json.loads((runs / "b" / "evaluation" / "scores.json").read_text())
    scores["data"] |= {"name": "pictures", "samples": 24}
    (tmp_path / "d" / "evaluation").mkdir(parents=True)
    (tmp_path / "d" / "evaluation" / "scores.json").write_text(json.dumps(scores))
    for arguments, complaint in (
        ((runs / "a", tmp_path / "d"), "was evaluated on 899 samples of digits and"),
        ((runs / "a", tmp_path / "d"), "on 24 samples of pictures; evaluate both on the same."),
        ((runs / "a",), "at least two runs were expected"),
        ((runs / "a", runs / "a"), "was given twice"),
        ((runs / "a", runs / "c"), "compare runs of one task"),
        ((runs / "a", tmp_path / "b"), "; make both under the same corruptions and severities."),
        ((runs / "a", runs / "nothing"), "has not been evaluated"),
    ):
        result = call("compare", *arguments)
        assert result.code == 1 and complaint in result.err and result.err.count("\n") == 1, result.err
    (tmp_path / "b" / "evaluation" / "scores.json").write_text("[1")
    assert "is damaged; evaluate the run again" in call("compare", runs / "a", tmp_path / "b").err
