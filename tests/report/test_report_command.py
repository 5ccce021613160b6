"""`forde evaluate` and `forde report` in this process: what they write, and what they say to mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from reported import SMALL, forde
from typer.testing import CliRunner

import forde as library
from forde.__main__ import main
from forde.cli import app
from forde.errors import FordeError
from forde.evaluation.runs import RunScores
from forde.report.page import write_report_page


def test_a_report_is_one_small_file_of_its_own(pages: dict[str, Path]) -> None:
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        assert path.stat().st_size < 5_000_000
        assert ' src="http' not in text and '<link rel="stylesheet' not in text and "default-src 'none'" in text
        assert str(library.__version__) in text


def test_scores_as_json_are_those_in_the_folder(runs: Path, tmp_path: Path) -> None:
    forde("evaluate", runs / "a", "--data", "digits", "--out", tmp_path / "o", "--json", tmp_path / "scores.json")
    written = json.loads((tmp_path / "scores.json").read_text())
    kept = RunScores.load(tmp_path / "o")
    assert written["command"] == "forde evaluate" and written["clean"] == kept.to_dict()["clean"]
    assert kept.result.cells == {} and RunScores.load(runs / "a").result.cells.keys() >= {"fog"}
    assert kept.result.clean == RunScores.load(runs / "a").result.clean


def test_a_run_that_was_not_evaluated_is_and_it_is_said(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a", ignore=shutil.ignore_patterns("evaluation"))
    forde("evaluate", tmp_path / "a", "--data", "digits")
    forde("report", tmp_path / "a", "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'id="severity"' not in text and 'id="reliability-clean"' in text and 'id="corruption"' not in text


def test_runs_that_cannot_be_compared_are_shown_with_the_reason(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "b", tmp_path / "b", ignore=shutil.ignore_patterns("evaluation"))
    forde("evaluate", tmp_path / "b", "--data", "digits")
    remarks = write_report_page([runs / "a", tmp_path / "b"], tmp_path / "r.html")
    assert len(remarks) == 1 and "only one of the evaluations was made under" in remarks[0]
    assert remarks[0].split(":")[0] in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("evaluate", "{runs}/a", "--data", "digits", "--corruptions", "fgo"), "did you mean 'fog'"),
        (("evaluate", "{runs}/a", "--data", "digits", "--severities", "1,x"), "numbers from 1 to 5"),
        (("evaluate", "{runs}/a", "--data", "digits", "--severities", "7"), "integer from 1 to 5"),
        (("evaluate", "{runs}/a", "--data", "digitz"), "did you mean 'digits'"),
        (("evaluate", "{runs}/a", "--data", "{runs}/table"), "is a table"),
        (("evaluate", "{runs}/c", "--data", "digits"), "trained on a table"),
        (("evaluate", "{runs}/c", "--data", "{runs}/table", "--precision", "bf16"), "leave it out"),
        (("evaluate", "{runs}/nothing"), "expected the folder of a run"),
        (("report", "{runs}/a", "{runs}/a", "--out", "{runs}/x.html"), "was given twice"),
        (("report", "{runs}/a", "{runs}/c", "--out", "{runs}/x.html"), "report runs of one task"),
        (("report", "{runs}/a", "--out", "{runs}"), "is a folder; name a file"),
    ],
)
def test_mistakes_are_one_sentence(
    runs: Path, arguments: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["forde", *(each.format(runs=runs) for each in arguments)])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main())
    said = capsys.readouterr().err
    assert ended.value.code == 1 and said.count("Error: ") == 1 and complaint in said
    assert "Traceback" not in said and not (runs / "x.html").exists()


def test_one_network_has_nobody_to_disagree_with(runs: Path, tmp_path: Path) -> None:
    forde("train", "--data", "digits", "--run", tmp_path / "one", "--method", "deep-ensemble", *SMALL, "--members", 1)
    forde("evaluate", tmp_path / "one", "--data", "digits")
    write_report_page([tmp_path / "one"], tmp_path / "r.html")
    assert "Inputs that members disagree on most" not in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_missing_library_is_named(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(FordeError, match=r"run: pip install 'forde\[report\]'"):
        write_report_page([runs / "a"], tmp_path / "r.html")


def test_help_has_an_example() -> None:
    for command in ("evaluate", "report"):
        assert "Example: forde" in CliRunner().invoke(app, [command, "--help"]).output


def test_commands_that_make_it_again(runs: Path, tmp_path: Path) -> None:
    from forde.report.page.commands import reproducing_commands
    from forde.report.page.runs import read_runs

    (run,) = read_runs([runs / "c"])
    trained, evaluated = reproducing_commands(run)
    assert trained.startswith(f"forde train --data {runs / 'table'} --epochs 2 --out {runs / 'c'} --hidden 16")
    typed = f"forde evaluate {runs / 'c'} --corruptions all --severities 2,4"
    assert evaluated == f"{typed} --data {runs / 'table'}"
    (digits,) = read_runs([runs / "a"])  # foreign inputs are named as they were typed: a file has no other name
    assert f"--foreign {runs / 'noise.npz'}" in reproducing_commands(digits)[1]
    del run.scores.result.settings["command"]
    evaluated = reproducing_commands(run)[1]
    assert evaluated == typed
    del run.settings["how"]["note"]
    assert reproducing_commands(run) == [evaluated]
    run.sessions[0]["command"] = "forde train --data 'my data'"
    assert reproducing_commands(run)[0] == "forde train --data 'my data'"
