"""`forde data` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import data_files as files
import numpy as np
import pytest
from typer.testing import CliRunner

import forde.data
from forde.commands.data import app
from forde.data import Description, Images
from forde.data.publications import PUBLICATIONS, File, Publication
from forde.errors import FordeError


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "250"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_set_and_where_it_is(tmp_path: Path) -> None:
    files.write_idx_set(tmp_path / "mnist", compressed=True)
    lines = {line.split()[0]: line for line in run("list", "--data-dir", tmp_path).splitlines()}
    assert set(lines) == {"name", *forde.data.CATALOGUE, *PUBLICATIONS}
    assert str(tmp_path / "mnist") in lines["mnist"] and "not here" in lines["cifar10"]
    assert "comes with forde" in lines["digits"]


def test_info_of_every_set(tmp_path: Path) -> None:
    for name in {*forde.data.CATALOGUE, *PUBLICATIONS}:
        assert name in run("info", name, "--data-dir", tmp_path)
    text = run("info", "cifar10", "--data-dir", tmp_path)
    for part in (
        "32 x 32 x 3",
        "0.4914, 0.4822, 0.4465",
        "0.2470, 0.2435, 0.2616",
        "airplane",
        "50,000",
        "c58f30108f718f92721af3b95e74349a",
        "Krizhevsky",
    ):
        assert part in text
    assert "no checksum published" in run("info", "tinyimagenet", "--data-dir", tmp_path)
    with pytest.raises(FordeError, match="did you mean 'mnist'"):
        run("info", "minst")


def test_check_says_what_is_there(tmp_path: Path) -> None:
    text = run("check", "digits")
    assert "898" in text and "as described" in text
    assert "400" in run("check", "regression-1d")
    files.write_idx_set(tmp_path, compressed=True)
    with pytest.raises(FordeError, match="60,000 were expected"):
        run("check", "mnist", "--data-dir", tmp_path)
    with pytest.raises(FordeError, match="forde data download cifar10"):
        run("check", "cifar10", "--data-dir", tmp_path / "empty")


def test_check_counts_classes_and_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: class 0 five times and class 1 twice; two images are copies, one of them under another label."""
    images = np.arange(7 * 4, dtype=np.uint8).reshape(7, 2, 2, 1)
    images[1], images[6] = images[0], images[0]
    known = Description("digits", 2, (2, 2, 1), (0.05,), (0.03,), {"train": 7}, "made here", ("a", "b"))
    made = Images(images, np.array([0, 0, 0, 0, 0, 1, 1]), known, "made here")
    monkeypatch.setitem(forde.data.CATALOGUE, "digits", known)
    monkeypatch.setattr("forde.data.checking.load", lambda *_: made)
    monkeypatch.setattr("forde.data.checking.STATISTICS_TOLERANCE", 1.0)
    row = next(line for line in run("check", "digits").splitlines() if line.startswith("train"))
    assert row.split() == ["train", "7", "2", "to", "5", "2", "1"]


def test_download_without_a_network_and_of_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File("http://127.0.0.1:9/set.tar", "set.tar", None)  # the discard port: nobody listens
    monkeypatch.setitem(PUBLICATIONS, "cifar10", Publication((file,), "none"))
    with pytest.raises(FordeError, match="cannot be reached"):
        run("download", "cifar10", "--data-dir", tmp_path)
    files.write_cifar10_batches(tmp_path / "cifar10")
    assert "cifar10 is in" in run("download", "cifar10", "--data-dir", tmp_path)


def test_every_command_has_an_example() -> None:
    for command in ("list", "info", "download", "check"):
        assert f"Example: forde data {command}" in run(command, "--help")
