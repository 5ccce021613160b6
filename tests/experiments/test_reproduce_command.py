"""`forde reproduce` through the executable: every experiment at the smoke budget, twice, and what can go wrong."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from small_cells import here, small_cell

import forde
from forde.__main__ import main
from forde.experiments import experiments, running
from forde.experiments.budgets import budget
from forde.experiments.estimates import COMPILING
from forde.experiments.results import read_result, results_in
from forde.report.pages import fill_page

OUTPUTS = {
    "table-cifar10": {"table.md", "ours.md", "table.csv", "table.tex"},
    "table-empcov": {"table.md", "table.csv", "table.tex"},
    "fig-1d": {"figure.png", "figure.svg"},
    "fig-2d": {"figure.png", "figure.svg"},
    "fig-transfer": {"figure.png", "figure.svg", "table.md"},
    "fig-empcov": {"figure.png", "figure.svg", "table.md"},
    "cost": {"cost.md", "cost.csv"},
    "frontier": {"figure.png", "figure.svg", "table.md", "cost.md"},
}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "forde", "reproduce", *map(str, arguments)]


def reproduce(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All experiments at the smoke budget, run by the first process of the tests that needs them."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smoke-results"
    with FileLock(f"{out}.lock"):
        if not (out / "smoke").exists():
            ended = reproduce("all", "--budget", "smoke", "--out", out, "--device", "cpu")
            assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


@pytest.mark.slow
def test_every_experiment_at_smoke(done: Path) -> None:
    known = set(forde.methods())
    for name, each in experiments().items():
        cells = {cell.name for cell in each.cells(budget("smoke")) if cell.method in known}
        assert cells <= {path.stem for path in (done / "cells").glob("*.json")}, name
        if name != "plan":
            files = {path.name for path in (done / "smoke" / name).iterdir()}
            assert {"summary.md", "corruptions.csv"} | OUTPUTS.get(name, set()) <= files, name
    assert not list((done / "runs").iterdir())
    for path in (done / "cells").iterdir():
        run = read_result(path).content["run"]
        assert run["budget"] == "smoke" and run["command"].startswith("forde reproduce all --budget smoke --out")
        assert path.stat().st_size < 60_000, path.name


@pytest.mark.slow
def test_again_nothing_is_run_and_the_report_is_the_same(done: Path) -> None:
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    stamps = {path: path.stat().st_mtime_ns for path in (done / "cells").iterdir()}
    ended = reproduce("table-cifar10", "fig-empcov", "frontier", "--budget", "smoke", "--out", done, "--device", "cpu")
    assert ended.returncode == 0, ended.stderr
    statuses = {line.split()[1] for line in ended.stdout.splitlines() if "digits-" in line}
    assert statuses == {"there"}
    assert {path: path.stat().st_mtime_ns for path in (done / "cells").iterdir()} == stamps
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_tables_say_what_the_files_say(done: Path) -> None:
    cells = [cell for cell in experiments()["table-cifar10"].cells(budget("smoke")) if cell.method == "forde-pca"]
    found, problems = results_in(done / "cells", cells)
    values = [one.content["pooled"]["nll"] for one in found]
    assert not problems and len(values) == 2
    with (done / "smoke" / "table-cifar10" / "table.csv").open() as file:
        (line,) = [row for row in csv.DictReader(file) if row["setting"] == "forde-pca" and row["score"] == "cNLL"]
    assert float(line["mean"]) == pytest.approx(np.mean(values), rel=1e-5)
    assert float(line["std"]) == pytest.approx(np.std(values, ddof=1), rel=1e-4) and line["seeds"] == "2"
    with (done / "smoke" / "table-cifar10" / "corruptions.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["setting"] == "forde-pca" and row["seed"] == "1"]
    assert [(row["corruption"], row["severity"]) for row in rows] == [
        (name, level) for name in ("gaussian_noise", "contrast") for level in "15"
    ]
    own = next(one for one in found if one.cell.seed == 1).content["corruptions"]["contrast"]["5"]
    assert float(rows[-1]["ece"]) == own["ece"]


@pytest.mark.slow
def test_pages_are_filled_in(done: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text(
        "# Results\n\n<!-- results: smoke/table-cifar10/table.md -->\nof yesterday\n<!-- end of results -->\n"
        "\nbetween\n\n"
        "<!-- results: smoke/frontier/figure.png -->\n<!-- end of results -->\n"
        "<!-- results: long/frontier/table.md -->\n<!-- end of results -->\n"
    )
    ended = reproduce("table-cifar10", "--budget", "smoke", "--out", done, "--report", "--page", page)
    assert ended.returncode == 0 and "2 of 3 tables and figures filled in" in ended.stdout, ended.stderr
    text = page.read_text()
    assert (done / "smoke" / "table-cifar10" / "table.md").read_text().strip() in text
    assert "of yesterday" not in text and "\n\nbetween\n\n" in text and "Not run yet." in text
    assert "![frontier](images/results-smoke-frontier-figure.png)" in text
    copied = tmp_path / "images" / "results-smoke-frontier-figure.png"
    assert copied.read_bytes() == (done / "smoke" / "frontier" / "figure.png").read_bytes()
    fill_page(page, done)
    assert page.read_text() == text


def test_pages_ask_for_files_inside_the_results_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for name in ("../secret.md", "/etc/passwd"):
        page.write_text(f"<!-- results: {name} -->\n<!-- end of results -->\n")
        with pytest.raises(forde.FordeError, match="inside the results folder"):
            fill_page(page, tmp_path)
    page.write_text("nothing")
    with pytest.raises(forde.FordeError, match="asks for no results"):
        fill_page(page, tmp_path)


def in_process(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["forde", "reproduce", *map(str, arguments)])
    try:
        return main()
    except SystemExit as ended:
        return int(ended.code or 0)


SMALL = ("--budget", "smoke", "--device", "cpu", "--methods", "deep-ensemble,lit", "--seeds", "0")


def test_exit_codes_and_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path)
    assert in_process(monkeypatch, "table-cifar10", *SMALL, *out, "--minutes", "0") == 75
    assert "2 of 2 cells are left; run the same command again" in capsys.readouterr().out
    whole = running.RUNNERS["images"]

    def fails_for_lit(cell: object, place: object) -> object:
        if "lit" in str(cell):
            raise ValueError("a slip")
        return whole(cell, place)  # type: ignore[arg-type]

    monkeypatch.setitem(running.RUNNERS, "images", fails_for_lit)  # type: ignore[arg-type]
    assert in_process(monkeypatch, "table-cifar10", *SMALL, *out) == 3
    said = capsys.readouterr()
    assert (
        "ValueError: a slip" in said.out
        and "1 of 2 cells failed" in said.err
        and "Traceback" not in said.out + said.err
    )
    assert "| deep-ensemble |" in (tmp_path / "smoke" / "table-cifar10" / "table.md").read_text()
    monkeypatch.setitem(running.RUNNERS, "images", whole)
    assert in_process(monkeypatch, "table-cifar10", *SMALL, *out, "--dry-run") == 0
    said = capsys.readouterr()
    assert said.out.count("done ") == 1 and said.out.count("to do  ") == 1 and "1 of 2 cells to do" in said.out
    assert in_process(monkeypatch, "table-cifar10", *SMALL, *out) == 0


def test_a_dry_run_shows_expected_seconds_and_their_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = tmp_path / "cifar10" / "test-00000.parquet"
    parquet.parent.mkdir()
    parquet.write_bytes(b"only looked for")
    place = ("--budget", "short", "--data", tmp_path, "--out", tmp_path / "out", "--dry-run")
    assert in_process(monkeypatch, "plan", *place, "--cells", "*-forde-*0.25-strength5-s*") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert [each[-1] for each in words] == [
        f"cifar10-resnet18-m5-e12-forde-repulsion_fraction0.25-strength5-s{seed}-{words[seed][-1][-8:]}"
        for seed in range(3)
    ]
    seconds, totals = ([float(each[i]) for each in words] for i in (2, 4))
    assert seconds[0] == seconds[1] + COMPILING and totals == pytest.approx(np.cumsum(seconds), abs=1.5)
    assert last.startswith("3 of 3 cells to do, about ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table-cifar11"], "did you mean 'table-cifar10'"),
        ([], "no experiment was named"),
        (["table-cifar10", "--methods", "fordo"], "unknown method of these experiments 'fordo'"),
        (["table-cifar10", "--cells", "strength5"], "no cell's name fits 'strength5'; --dry-run shows the names"),
        (["table-cifar10", "--budget", "tiny"], "unknown budget 'tiny'"),
        (["table-cifar10", "--seeds", "x"], "whole numbers"),
        (["table-cifar100", "--data", "."], "no cell is left to run"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_process(monkeypatch, *arguments, "--out", tmp_path / "out", "--device", "cpu") == 1
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err and err.splitlines()[-1].startswith("Error: ")


def test_the_list_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert in_process(monkeypatch, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    for name, each in experiments().items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert line.endswith(each.line) and each.line.endswith(".")


@pytest.mark.slow
def test_killed_at_any_moment_files_are_whole_and_the_same_command_goes_on(tmp_path: Path) -> None:
    arguments = ("table-empcov", "--budget", "smoke", "--out", tmp_path, "--device", "cpu")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if " done " in line and line.startswith("  3/"):
                time.sleep(0.05)
                process.send_signal(signal.SIGKILL)
                break
    finished = list((tmp_path / "cells").glob("*.json"))
    assert 3 <= len(finished) < 12 and all(read_result(path) for path in finished)
    stamps = {path: path.stat().st_mtime_ns for path in finished}
    ended = reproduce(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == stamps
    assert len(list((tmp_path / "cells").glob("*.json"))) == 12


@pytest.mark.slow
def test_stopped_by_a_signal_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """SIGTERM, as a cluster sends it, in the middle of a cell."""
    cell = small_cell("forde-pca", epochs=4000)
    code = (
        "import json, sys; from pathlib import Path; from forde.experiments.cells import Cell; "
        "from forde.experiments.places import Place; from forde.experiments.running import run_cell; "
        f"run_cell(Cell.of(json.loads(sys.argv[1])), Place(Path({str(tmp_path)!r}), 'cpu'))"
    )
    run = tmp_path / "runs" / cell.name / "training"
    with subprocess.Popen([sys.executable, "-c", code, json.dumps(cell.identity)], stderr=subprocess.PIPE) as process:
        started = time.monotonic()
        while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_bytes()) < 1000:
            assert process.poll() is None and time.monotonic() - started < 120
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1].decode()
    assert f"stopped by SIGTERM; {cell.name} is saved, run the same command again" in said
    assert (
        process.returncode != 0
        and not list((tmp_path / "cells").glob("*"))
        and len(list(run.glob("checkpoints/*"))) > 0
    )
    before = len((run / "metrics.jsonl").read_text().splitlines())
    assert running.run_cell(cell, here(tmp_path, deadline=0.0)).status == "interrupted"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == before + 1
