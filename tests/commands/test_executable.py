"""The executable from end to end as the documentation shows it, and what it says to nonsense."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from executable import done, environment, forde, refused
from PIL import Image
from small_runs import SMALL, Result, quantities, written

from forde._version import __version__


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluated runs `images` and `table`, a run and scores that say they are of another version, and broken files."""
    folder = tmp_path_factory.mktemp("everything")
    (folder / "t").mkdir()
    for split in ("train", "test"):
        written(folder / "t" / f"{split}.csv", quantities())
    for name, data in (("images", "digits"), ("table", "t")):
        done("train", "--data", data, "--out", name, *SMALL, cwd=folder)
        done("evaluate", name, cwd=folder)
        shutil.copytree(folder / name, folder / f"newer-{name}")
        shutil.copytree(folder / name, folder / f"newer-scores-{name}")
        for path in (f"newer-{name}/config.json", f"newer-scores-{name}/evaluation/scores.json"):
            (folder / path).write_text(json.dumps({**json.loads((folder / path).read_text()), "format": 99}))
    shutil.copytree(folder / "images", folder / "not-evaluated", ignore=shutil.ignore_patterns("evaluation"))
    (folder / "broken.csv").write_bytes(b"\x00\xff\xfe,\x80\n\x9f" * 9)
    (folder / "broken.npz").write_bytes(b"PK\x03\x04nothing")
    (folder / "broken.parquet").write_bytes(b"PAR1nothing")
    (folder / "broken.yaml").write_text("a: [")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    (folder / "other.csv").write_text("a,bb,y\n1,2,3\n")
    Image.new("L", (8, 8)).save(folder / "image.png")
    (folder / "there.csv").write_text("mine")
    (folder / "full").mkdir()
    np.save(folder / "full" / "labels.npy", np.arange(3))
    return folder


EPOCH = ("--epochs", 1, "--out", "new")
NONSENSE = {
    "unknown name": [
        ("train --data digitz", "did you mean 'digits'?"),
        ("train --data digits --method forde-pcs", "did you mean 'forde-pca'?"),
        ("train --data digits --model resnet81", "did you mean 'resnet18'?"),
        ("train --data digits --set training.epoch=3", "did you mean 'training.epochs'?"),
        ("tune --data digits --search strenght --out new --epochs 1", "did you mean 'strength'?"),
        ("evaluate images --corruptions fgo", "did you mean 'fog'?"),
        ("corrupt digits --out new --type fogg", "did you mean 'fog'?"),
        ("features --backbone efficientnet-light0 --data digits --out new", "did you mean 'efficientnet-lite0'?"),
        ("reproduce table-cifra10 --out new", "did you mean 'table-cifar10'?"),
        ("bench step --methods forde-pcs", "did you mean 'forde-pca'?"),
        ("bench tables --peers forst --out new", "did you mean 'forest'?"),
        ("data info cifar11", "did you mean 'cifar10'?"),
        ("data download cifra10", "did you mean 'cifar10'?"),
        ("config --of trian", "did you mean 'train'?"),
    ],
    "unreadable file": [
        ("train --data broken.csv", "broken"),
        ("train --data broken.npz", "broken"),
        ("train --data broken.parquet", "broken"),
        ("train --config broken.yaml", "is no YAML in line 1"),
        ("train --data none.csv", "'none.csv' does not exist"),
        ("evaluate images --data broken.npz", "broken"),
        ("predict images broken.png --out new.csv", "broken"),
        ("predict nothing digits --out new.csv", "expected the folder of a run"),
        ("corrupt broken.png --out new", "broken"),
    ],
    "wrong column": [
        ("train --data t --target yy", "did you mean 'y'?"),
        ("predict table other.csv --out new.csv", "has no column 'b', as the training data has; did you mean 'bb'?"),
        ("evaluate table --data other.csv", "has no column 'b', as the training data has; did you mean 'bb'?"),
    ],
    "missing data set": [
        ("train --data cifar10", "forde data download cifar10"),
        ("tune --data cifar10 --epochs 1 --out new", "forde data download cifar10"),
        ("evaluate images --foreign cifar10", "forde data download cifar10"),
        ("predict images cifar10 --out new.csv", "forde data download cifar10"),
        ("corrupt cifar10 --out new", "forde data download cifar10"),
        ("data check cifar10", "forde data download cifar10"),
    ],
    "existing output": [
        ("train --data digits --out images", "is not empty"),
        ("tune --data digits --out images --epochs 1", "holds a run, but a folder for a study was expected"),
        ("predict images digits --out there.csv", "is there already; name another file as --out, or add --replace"),
        ("corrupt digits --out full --type fog", "holds the labels of other images; name another folder as --out"),
        ("report images --out full", "is a folder; name a file"),
        ("compare images table --json full", "cannot be written"),
    ],
    "a table where images are needed": [
        ("train --data t --model resnet18", "resnet18 needs images"),
        ("train --data t --augment", "--augment needs images, but 't' is a table"),
        ("evaluate images --data t", "is a table"),
        ("predict images other.csv --out new.csv", "is a table, but the run was trained on images"),
        ("predict table image.png --out new.csv", "holds images, but the run was trained on a table"),
        ("corrupt t --out new", "is a table, but images were expected"),
    ],
    "a run of another version": [
        ("evaluate newer-images", "has format 99, but"),
        ("predict newer-table t/test.csv --out new.csv", "has format 99, but"),
        ("config newer-images --show", "has format 99, but"),
        ("report newer-scores-images --out new.html", "has format 99, but 1 was expected; evaluate the run again"),
        ("compare table newer-scores-table", "has format 99, but 1 was expected; evaluate the run again"),
        ("train --data digits --out newer-images --resume", "has format 99, but"),
    ],
    "runs that do not go together": [
        ("compare images", "at least two runs were expected"),
        ("compare images table", "compare runs of one task"),
        ("compare images not-evaluated", "has not been evaluated; run: forde evaluate not-evaluated"),
        ("report images table --out new.html", "report runs of one task"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "complaint", "afresh"),
    [
        pytest.param(*each, each is cases[0], id=f"{kind}: {each[0]}")
        for kind, cases in NONSENSE.items()
        for each in cases
    ],
)
def test_nonsense_is_one_sentence_and_nothing_is_written(
    line: str, complaint: str, afresh: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORDE_DATA", str(folder / "no-data"))
    words = line.split()
    more = [] if words[0] != "train" else [*SMALL[:4], *EPOCH[: 2 if "--out" in words else 4]]
    before = sorted(folder.rglob("*"))
    contents = {path: path.read_bytes() for path in before if path.is_file() and path.name != "log.txt"}
    assert complaint in refused(*words, *more, cwd=folder, afresh=afresh)
    assert sorted(folder.rglob("*")) == before
    assert {path: path.read_bytes() for path in contents} == contents


def test_a_command_or_option_that_is_none(folder: Path) -> None:
    for words, named in ((("trian",), "trian"), (("train", "--epoch", "3"), "--epoch"), (("bench", "stpe"), "stpe")):
        result = forde(*words, cwd=folder)
        assert result.returncode == 2 and named in result.stderr and "Traceback" not in result.stderr


@pytest.mark.slow
def test_the_everyday_lines(tmp_path: Path) -> None:
    """From data to predictions and a report, piped: each epoch is a line, with the time left."""
    listed = json.loads(done("methods", "--json", "-", cwd=tmp_path, afresh=True))["methods"]
    assert "forde-pca" in listed and all(line.endswith(".") for line in listed.values())
    assert json.loads(done("data", "list", "--json", "-", cwd=tmp_path))["data_sets"]["digits"]["classes"] == 10
    rows = quantities().assign(kind=["low", "high"] * 30)
    written(tmp_path / "mine.csv", rows)
    for name, method in (("a", "deep-ensemble"), ("b", "forde")):
        said = done("train", "--data", "digits", "--out", f"runs/{name}", "--method", method, *SMALL, cwd=tmp_path)
        epochs = [line for line in said.splitlines() if line.startswith("epoch ")]
        assert len(epochs) == 2 and "(1 of 2)" in epochs[0] and " left" in epochs[0]
        options = ("--corruptions", "fog", "--severities", "3", "--json", "-")
        scores = json.loads(done("evaluate", f"runs/{name}", *options, cwd=tmp_path))
        assert 0.1 < scores["clean"]["accuracy"]["value"] <= 1
    assert "NLL in 1 cells" in done("compare", "runs/a", "runs/b", cwd=tmp_path)
    done("report", "runs/a", "runs/b", "--out", "report.html", cwd=tmp_path, afresh=True)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    done("train", "--data", "mine.csv", "--target", "kind", "--out", "runs/t", *SMALL, cwd=tmp_path, afresh=True)
    done("predict", "runs/t", "mine.csv", "--out", "predictions.csv", cwd=tmp_path, afresh=True)
    found = pd.read_csv(tmp_path / "predictions.csv")
    assert len(found) == 60 and set(found["label"]) <= {"low", "high"} and {"do_not_trust", "total"} <= {*found}
    settings = json.loads(done("config", "runs/t", "--json", "-", cwd=tmp_path))["settings"]
    assert settings["data"]["target"] == {"value": "kind", "from": "runs/t"}
    assert settings["training"]["batch_size"]["value"] == 128


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("forde tr", {"train"}),
        ("forde train --meth", {"--method"}),
        ("forde train --method deep", {"deep-ensemble"}),
        ("forde train --data dig", {"digits"}),
        ("forde train --model wrn", {"wrn16_4"}),
        ("forde tune --data cifar1", {"cifar10", "cifar100"}),
        ("forde data info tiny", {"tinyimagenet", "tinyimagenet-c"}),
        ("forde evaluate im", {"images"}),
        ("forde compare images ta", {"table"}),
        ("forde report newer-i", {"newer-images"}),
        ("forde predict tab", {"table"}),
    ],
)
def test_the_shell_completes(typed: str, proposed: set[str], folder: Path) -> None:
    """As bash asks it: the script that `forde --install-completion` installs sets these variables."""
    words = typed.split()
    asked = {"_FORDE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    result = forde(cwd=folder, env=environment(**asked), afresh=typed == "forde tr")
    found = {line.split("\t")[0] for line in result.stdout.split("\n") if line}
    assert proposed <= found and all(name.startswith(words[-1]) for name in found), result


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("methods", "methods"),
        ("data list", "data_sets"),
        ("data info cifar10", "files"),
        ("data check digits", "splits"),
        ("config --set training.epochs=3", "settings"),
        ("reproduce --list", "experiments"),
        ("reproduce cost --budget smoke --dry-run --out new", "cells"),
        ("bench kernel --dimensions 8 --members 2 --batch 2 --repeats 1", "rows"),
        ("compare images images-again", "differences"),
    ],
)
def test_json_alone_on_stdout(
    call: Callable[..., Result], line: str, key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers as in a file; what people read goes to stderr then."""
    monkeypatch.chdir(folder)
    again = folder / "images-again"
    if not again.exists():
        shutil.copytree(folder / "images", again)
    result = call(*line.split(), "--json", "-")
    assert result.code == 0, result
    told = json.loads(result.out)
    words = line.split()[: 2 if line.startswith(("data", "bench")) else 1]
    assert told["command"] == f"forde {' '.join(words)}" and told["forde"] == __version__ and told[key]
    assert len(result.err) > 20


def test_no_flag_has_two_meanings_or_two_names() -> None:
    """What several commands have is called the same everywhere, and each command that writes takes `--out`."""
    import typer

    from forde.cli import app

    root = typer.main.get_command(app)
    commands = {name: command for name, command in root.commands.items() if name not in ("data", "bench")}  # type: ignore[attr-defined]
    flags = {name: {flag for param in each.params for flag in param.opts} for name, each in commands.items()}
    writing = {"demo", "train", "evaluate", "predict", "corrupt", "tune", "features", "reproduce", "report"}
    assert {name for name, has in flags.items() if "--out" in has} == writing
    reporting = writing - {"corrupt", "report"} | {"compare", "methods", "config"}
    assert {name for name, has in flags.items() if "--json" in has} == reporting
    for group in ("data", "bench"):
        for name, each in root.commands[group].commands.items():  # type: ignore[attr-defined]
            has = {flag for param in each.params for flag in param.opts}
            assert ("--json" in has) == (name != "download"), name
    helps: dict[str, set[str]] = {}
    for each in commands.values():
        for param in each.params:
            if {"--seed", "--precision", "--json", "--data-dir"} & {*param.opts}:
                helps.setdefault(max(param.opts, key=len), set()).add(re.sub(r"\s+", " ", param.help))
    assert helps["--seed"] == {"Of all that is random."} and len(helps["--json"]) == 1


def test_exit_codes_are_those_that_the_page_lists() -> None:
    from forde.commands import options
    from forde.commands.bench.tables import CELL_FAILED as ROW_FAILED
    from forde.commands.reproduce import CELL_FAILED

    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([\d, ]+) \|", page.split("## Exit codes")[1], re.MULTILINE))
    codes = {int(code) for codes in listed for code in codes.split(",")}
    own = {0, options.FAILED, options.WRONG_USE, options.LATER, CELL_FAILED, ROW_FAILED}
    assert codes == own | {128 + number for number in (1, 2, 15)}  # SIGHUP, SIGINT, SIGTERM
