"""`forde corrupt`: its options reach the corruptions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import data_files as files
import numpy as np
import pytest
from small_runs import Result

from forde.__main__ import main
from forde.corruptions import corrupt


def test_split_preset_and_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORDE_DATA", str(tmp_path / "empty"))
    images, labels = files.write_idx_set(tmp_path / "mnist", compressed=False)
    options = ["--split", "train", "--type", "contrast", "--preset", "imagenet", "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["forde", "corrupt", "mnist", str(tmp_path / "out"), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert np.array_equal(np.load(tmp_path / "out" / "labels.npy"), np.tile(labels, 5))
    found = np.load(tmp_path / "out" / "contrast.npy").reshape(5, len(images), 28, 28, 1)
    for severity in range(1, 6):
        one, other = (corrupt(images[..., None], "contrast", severity, preset=name) for name in ("imagenet", "cifar"))
        assert np.array_equal(found[severity - 1], one) and not np.array_equal(one, other)


def test_what_is_there_is_replaced_only_when_asked(call: Callable[..., Result], tmp_path: Path) -> None:
    out = tmp_path / "c"
    written = call("corrupt", "digits", "--out", out, "--type", "contrast", "--corruptions", "contrast")
    assert written.code == 0 and written.err == "1/1 contrast\n"
    first = (out / "contrast.npy").read_bytes()
    again = call("corrupt", "digits", "--out", out, "--type", "contrast", "--preset", "tiny")
    assert (
        again.code == 1 and "contrast.npy' is there already; name others as --corruptions, another folder" in again.err
    )
    assert (out / "contrast.npy").read_bytes() == first
    more = call("corrupt", "digits", "--out", out, "--corruptions", "fog,brightness")
    assert more.code == 0 and more.err.startswith("1/2 fog, ") and more.err.endswith("2/2 brightness\n")
    others = call("corrupt", "digits", "--split", "train", "--out", out, "--type", "saturate")
    assert others.code == 1 and "labels.npy' holds the labels of other images" in others.err
    assert call("corrupt", "digits", "--out", out, "--type", "contrast", "--preset", "tiny", "--replace").code == 0
    assert (out / "contrast.npy").read_bytes() != first
    assert sorted(path.name for path in out.iterdir()) == ["brightness.npy", "contrast.npy", "fog.npy", "labels.npy"]


def test_one_folder_is_named(call: Callable[..., Result], tmp_path: Path) -> None:
    for words, said in (((), "no folder was named"), ((tmp_path / "a", "--out", tmp_path / "b"), "two folders")):
        result = call("corrupt", "digits", *words)
        assert result.code == 1 and said in result.err and not any(tmp_path.iterdir())
    assert "--seed is -1" in call("corrupt", "digits", "--out", tmp_path / "a", "--seed", -1).err


def test_usage_names_what_it_takes(call: Callable[..., Result]) -> None:
    assert "[]" not in call("corrupt", "--help").out
