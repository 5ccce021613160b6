"""Damaged checkpoints are found, named and passed over; full disks and read-only folders destroy nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from short_runs import STEPS, crash, ensemble, metrics, result, train

import forde
from forde import durable
from forde.hashing import canonical


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    here = Path.cwd()
    os.chdir(run.parent)
    train(run)
    os.chdir(here)
    return run


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A run with two checkpoints, the newer one 000009, that stopped in the second epoch."""
    crash(tmp_path / "run", STEPS + 2)
    return tmp_path / "run"


def newest(run: Path, suffix: str) -> Path:
    return max((run / "checkpoints").glob(f"*{suffix}"))


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(bytes(content))


def restated(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter the manifest and make its checksum right again."""
    path = newest(run, ".json")
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    change(manifest)
    manifest["sha256"] = hashlib.sha256(canonical(manifest)).hexdigest()
    path.write_text(json.dumps(manifest))


def with_other_tensors(run: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Alter the tensors and make all checksums right again."""
    path = newest(run, ".safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    content = path.read_bytes()

    def state(manifest: dict[str, Any]) -> None:
        manifest["tensors"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    restated(run, state)


def wider(tensors: dict[str, torch.Tensor]) -> None:
    tensors["ensemble.members.0.0.weight"] = torch.zeros(9, 5)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tensors truncated": lambda run: cut(newest(run, ".safetensors"), 0.7),
    "tensors without the last byte": lambda run: cut(newest(run, ".safetensors"), 1 - 1e-5),
    "tensors empty": lambda run: cut(newest(run, ".safetensors"), 0),
    "tensors missing": lambda run: newest(run, ".safetensors").unlink(),
    "tensors with text behind": lambda run: newest(run, ".safetensors").write_bytes(
        newest(run, ".safetensors").read_bytes() + b"x"
    ),
    "tensors of the checkpoint before": lambda run: newest(run, ".safetensors").write_bytes(
        min((run / "checkpoints").glob("*.safetensors")).read_bytes()
    ),
    "header flipped": lambda run: flip(newest(run, ".safetensors"), 0.001),
    "header size enormous": lambda run: newest(run, ".safetensors").write_bytes(b"\xff" * 8 + b"{}"),
    "tensors flipped in the middle": lambda run: flip(newest(run, ".safetensors"), 0.6),
    "tensors flipped at the end": lambda run: flip(newest(run, ".safetensors"), 1),
    "text truncated": lambda run: cut(newest(run, ".json"), 0.5),
    "text empty": lambda run: cut(newest(run, ".json"), 0),
    "text flipped": lambda run: flip(newest(run, ".json"), 0.5),
    "text not UTF-8": lambda run: newest(run, ".json").write_bytes(b"\xff\xfe\x00"),
    "text a list": lambda run: newest(run, ".json").write_text("[1, 2]"),
    "text too deep": lambda run: newest(run, ".json").write_text("[" * 100_000),
    "number altered": lambda run: newest(run, ".json").write_text(
        newest(run, ".json").read_text().replace('"step": 2', '"step": 3')
    ),
    "other version": lambda run: restated(run, lambda manifest: manifest.update(format=2)),
    "other run": lambda run: restated(run, lambda manifest: manifest.update(run="another")),
    "other architecture": lambda run: with_other_tensors(run, wider),
    "a member missing": lambda run: with_other_tensors(run, lambda t: t.pop("ensemble.members.1.4.bias")),
    "random numbers missing": lambda run: with_other_tensors(run, lambda t: t.pop("now.torch")),
    "random numbers of another size": lambda run: with_other_tensors(
        run, lambda t: t.update({"now.torch": torch.zeros(3, dtype=torch.uint8)})
    ),
    "position missing": lambda run: restated(run, lambda manifest: manifest["state"].pop("epoch")),
    "position not a number": lambda run: restated(run, lambda manifest: manifest["state"].update(step=[])),
    "no tensors stated": lambda run: restated(run, lambda manifest: manifest.pop("tensors")),
    "no state": lambda run: restated(run, lambda manifest: manifest.update(state=None)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_before_is_used(damage: str, broken: Path, whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGES[damage](broken)
    name = newest(broken, ".json").name
    train(broken, resume=True)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and name in warnings[0] and "passed over" in warnings[0]
    assert name in (broken / "log.txt").read_text()
    assert result(broken) == result(whole) and metrics(broken) == metrics(whole)


def test_none_is_good(broken: Path) -> None:
    for path in (broken / "checkpoints").glob("*.safetensors"):
        flip(path, 0.5)
    before = {path: path.read_bytes() for path in (broken / "checkpoints").iterdir()}
    with pytest.raises(forde.FordeError, match=r"none of the checkpoints in '.*' can be used") as raised:
        train(broken, resume=True)
    assert "\n" not in str(raised.value)
    assert {path: path.read_bytes() for path in (broken / "checkpoints").iterdir()} == before


@pytest.mark.parametrize(("content", "message"), [("{", "damaged"), ("[]", "damaged"), ('{"format": 7}', "format 7")])
def test_damaged_settings(content: str, message: str, broken: Path) -> None:
    (broken / "config.json").write_text(content)
    with pytest.raises(forde.FordeError, match=message):
        train(broken, resume=True)


def unreadable(path: Path) -> None:
    """Something is in the way that is no file."""
    path.unlink()
    path.mkdir()


RECORDS: dict[str, tuple[Callable[[Path], object], int]] = {
    "missing": (Path.unlink, 0),
    "empty": (lambda path: cut(path, 0), 0),
    "torn in the last line": (lambda path: cut(path, 0.9), 2),
    "a line in the middle damaged": (
        lambda path: path.write_bytes(path.read_bytes().replace(b'"epoch": 1', b"\xff")),
        2,
    ),
    "not records": (lambda path: path.write_text('3\n[]\n{"loss": "low"}\n{"loss": []}\n'), 0),
    "a folder": (unreadable, 0),
}


@pytest.mark.parametrize("damage", RECORDS)
def test_records_of_a_finished_run_are_damaged(
    damage: str, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    alter, left = RECORDS[damage]
    alter(tmp_path / "run" / "metrics.jsonl")
    loaded = ensemble()
    history = train(tmp_path / "run", loaded, resume=True)
    expected = metrics(whole)
    assert len(history) == left
    for record in history:
        assert record["loss"] == expected[int(record["epoch"])]["loss"]
    weights = load_file(whole / "ensemble" / "model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.state_dict().items())
    (message,) = [record.message for record in caplog.records]
    assert "metrics.jsonl' is missing or damaged" in message and f"{left} of 3 epochs" in message


def test_whole_records_are_not_spoken_of(whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(whole, tmp_path / "run")
    assert len(train(tmp_path / "run", resume=True)) == 3 and not caplog.records


class FullDisk:
    """Fails at the n-th write into files with this ending, after half of the bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ending: str, at: int, number: int = errno.ENOSPC) -> None:
        self.left, self.pour = at, durable._pour

        def pour(file: Any, content: bytes) -> None:
            self.left -= file.name.endswith(ending)
            if self.left <= 0 and file.name.endswith(ending):
                self.pour(file, content[: len(content) // 2])
                raise OSError(number, os.strerror(number))
            self.pour(file, content)

        monkeypatch.setattr(durable, "_pour", pour)


@pytest.mark.parametrize(("ending", "at"), [(".safetensors.tmp", 5), (".json.tmp", 5), ("metrics.jsonl", 2)])
def test_full_disk(ending: str, at: int, tmp_path: Path, whole: Path) -> None:
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, ending, at)
        with pytest.raises(forde.FordeError, match=r"No space left on device; free some space .*resume=True") as raised:
            train(run)
    assert "\n" not in str(raised.value)
    kept = sorted(path.suffix for path in (run / "checkpoints").iterdir())
    assert kept == [".json", ".json", ".safetensors", ".safetensors"], "both older ones, and nothing of the new one"
    train(run, resume=True)
    assert result(run) == result(whole) and metrics(run) == metrics(whole)


@pytest.mark.parametrize("ending", [".safetensors.tmp", "config.json.tmp"])
def test_full_disk_from_the_start(ending: str, tmp_path: Path, whole: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, ending, 1)
        with pytest.raises(forde.FordeError, match="No space left") as raised:
            train(tmp_path / "run")
    assert "checkpoint before" not in str(raised.value), "there is none"
    train(tmp_path / "run", resume=True)
    assert result(tmp_path / "run") == result(whole)


def test_disk_that_forgets_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new checkpoint reads back differently, so the old ones stay."""
    pour, writes = durable._pour, []

    def flipping(file: Any, content: bytes) -> None:
        if file.name.endswith(".safetensors.tmp"):
            writes.append(file.name)
            content = content[:-1] + bytes([content[-1] ^ 1]) if len(writes) == 5 else content
        pour(file, content)

    monkeypatch.setattr(durable, "_pour", flipping)
    with pytest.raises(forde.FordeError, match="checksum"):
        train(tmp_path / "run")
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.json"))) == 2


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_folder_becomes_unwritable(number: int, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, ".safetensors.tmp", 4, number)
        with pytest.raises(forde.FordeError, match=re.escape(os.strerror(number))):
            train(tmp_path / "run")
    train(tmp_path / "run", resume=True)


def test_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for run in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(forde.FordeError, match="Not a directory"):
            train(run, resume=True)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_read_only_folder() -> None:
    """In a child without privileges, since an administrator may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                train(Path(name) / "run")
            except forde.FordeError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        message = os.read(reading, 10_000).decode()
        Path(name).chmod(0o755)
    assert "could not write into" in message and message.endswith("Permission denied; choose a writable folder.")
