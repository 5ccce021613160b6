"""The command line as a user meets it: in a process of its own."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import forde
from forde.__main__ import main
from forde.corruptions import NAMES, corrupt


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forde", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def test_methods_are_listed_with_one_line_each() -> None:
    result = run("methods")
    assert result.returncode == 0
    for name, line in forde.methods().items():
        assert name in result.stdout and line in result.stdout


def test_version_and_help() -> None:
    version = run("--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"forde {forde.__version__}\n", "")
    assert "demo" in run("--help").stdout
    assert "Example" in run("demo", "--help").stdout


@pytest.mark.parametrize("arguments", [("nonsense",), ("demo", "--seeds", "none"), ("demo", "--members", "0")])
def test_mistakes_exit_non_zero_without_traceback(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr and "Error" in result.stderr


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = run("demo", "--out", str(tmp_path / "file" / "figures"))
    assert result.returncode == 1
    assert "choose another" in result.stderr and "Traceback" not in result.stderr


def test_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    result = run("methods", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "pip install 'forde[cli]'" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("name", ["torch", "typer"])
def test_ctrl_c_while_libraries_are_imported_is_quiet(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    sources = Path(forde.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-c", "import sys, forde_command; sys.exit(forde_command.main())", "methods"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{sources}"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert result.returncode in (-signal.SIGINT, 130) and result.stdout + result.stderr == ""


def test_without_a_terminal_a_method_is_a_line() -> None:
    lines = run("methods", COLUMNS="40").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(forde.methods())


def test_own_work_comes_before_the_rest() -> None:
    listed = re.findall(r"^│ ([a-z]+) ", run("--help").stdout, re.MULTILINE)
    assert listed[:5] == ["train", "evaluate", "predict", "compare", "report"] and "reproduce" in listed


def test_corrupt_writes_the_layout_of_cifar_c(tmp_path: Path) -> None:
    result = run("corrupt", "digits", "out", "--type", "fog", "--type", "contrast", "--seed", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    clean = forde.data.load("digits", "test")
    labels = np.load(tmp_path / "out" / "labels.npy")
    assert np.array_equal(labels, np.tile(clean.labels, 5))
    fog = np.load(tmp_path / "out" / "fog.npy")
    assert fog.shape == (5 * len(clean), *clean.images.shape[1:])
    assert np.array_equal(fog[len(clean) : 2 * len(clean)], corrupt(clean.images, "fog", 2, seed=1))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["contrast.npy", "fog.npy", "labels.npy"]


def test_corrupt_takes_the_split_and_the_constants_that_are_asked_for(tmp_path: Path) -> None:
    options = ("--type", "contrast", "--split", "train", "--preset", "tiny")
    result = run("corrupt", "digits", "out", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    clean = forde.data.load("digits", "train").images
    written = np.load(tmp_path / "out" / "contrast.npy")[: len(clean)]
    assert np.array_equal(written, corrupt(clean, "contrast", 1, preset="tiny"))
    assert not np.array_equal(written, corrupt(clean, "contrast", 1)), "the constants matter"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("corrupt", "digits", "out", "--type", "fogg"), "did you mean 'fog'"),
        (("corrupt", "digitz", "out"), "digit"),
        (("corrupt", "digits", "out", "--split", "tset"), "did you mean 'test'"),
        (("data", "info", "cifar11"), "cifar10"),
    ],
)
def test_user_errors_are_one_sentence(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.slow
def test_bench_corruptions(tmp_path: Path) -> None:
    result = run("bench", "corruptions", "--repeats", "1", "--json", "speeds.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    numbers = json.loads((tmp_path / "speeds.json").read_text())
    assert [row["name"] for row in numbers["rows"]] == list(NAMES)
    assert all(row["images_per_second"] > 0 for row in numbers["rows"])
    assert numbers["machine"]["forde"] == forde.__version__
    assert "images_per_second" in result.stdout and "spatter" in result.stdout


@pytest.mark.slow
def test_demo_prints_the_table_and_writes_the_figures(tmp_path: Path) -> None:
    result = run("demo", "--seeds", "1", "--members", "3", "--out", "figures", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for name in (
        "deep-ensemble",
        "forde-identity",
        "forde-pca",
        "clean accuracy",
        "corrupted NLL",
        "corrupted ECE",
        "corrupted MI",
    ):
        assert name in result.stdout
    written = [line.removeprefix("wrote ") for line in result.stdout.splitlines() if line.startswith("wrote ")]
    assert len(written) == 3
    for path in written:
        assert (tmp_path / path).read_bytes().startswith(b"\x89PNG") and (tmp_path / path).stat().st_size > 10_000


ODD = "[b]bold[/b] :smile:"
"""A name that is markup and an emoji to a console that looks for them."""


def test_paths_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ODD
    train = ["train", "--data", "classification-2d", "--hidden", "4", "--members", "2", "--epochs", "1", "--lr", "0.01"]
    bench = ["bench", "kernel", "--dimensions", "8", "--members", "2", "--batch", "2", "--repeats", "1"]
    commands = {
        folder / "run" / "ensemble": [*train, "--device", "cpu", "--run", str(folder / "run")],
        folder / "times.json": [*bench, "--json", str(folder / "times.json")],
    }
    monkeypatch.setenv("COLUMNS", "1000")
    for path, command in commands.items():
        monkeypatch.setattr(sys, "argv", ["forde", *command])
        with suppress(SystemExit):
            main()
        shown = capsys.readouterr()
        assert str(path) in shown.out, shown


def test_no_command_takes_text_for_markup() -> None:
    """Every console is the one that prints text as it is; styles are `Text`, not brackets in a string."""
    folder = Path(forde.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console":
                assert path.name in ("console.py", "progress.py"), f"{path.name} makes a console of its own"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert "[bold]" not in node.value and "[/" not in node.value.replace("[/b]", ""), path.name
