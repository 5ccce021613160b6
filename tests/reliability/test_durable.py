"""What is written lasts: content reaches the disk before the name does, and the name before anything relies on it.

No test can pull the plug, so these watch the order of the calls that a file system needs: write, fsync of the file,
rename, fsync of the folder that holds the name.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from short_runs import crash, train

import forde
from forde import durable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a folder is synced on POSIX only")
Event = tuple[str, Path]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What happened to files, in order: ("synced", path), ("named", path) and ("made", folder)."""
    found: list[Event] = []
    fsync, replace, mkdir, rename = os.fsync, Path.replace, os.mkdir, os.rename

    sizes: dict[Path, int] = {}

    def path_of(descriptor: int) -> Path:
        status = os.fstat(descriptor)
        return next(path for path in (Path.cwd(), *Path.cwd().rglob("*")) if os.path.samestat(path.stat(), status))

    def watching_fsync(descriptor: int) -> None:
        path = path_of(descriptor)
        sizes[path] = os.fstat(descriptor).st_size
        found.append(("synced", path))
        fsync(descriptor)

    def watching_replace(path: Path, target: Path) -> Path:
        assert sizes.get(path) == path.stat().st_size, f"'{path.name}' was not synced with all of its content"
        found.append(("named", Path(target)))
        return replace(path, target)

    def watching_rename(path: str, target: str) -> None:
        found.append(("named", Path(target)))
        rename(path, target)

    def watching_mkdir(path: str, *rest: int, **more: int) -> None:
        mkdir(path, *rest, **more)
        found.append(("made", Path(path)))

    monkeypatch.setattr(os, "fsync", watching_fsync)
    monkeypatch.setattr(Path, "replace", watching_replace)
    monkeypatch.setattr(os, "rename", watching_rename)
    monkeypatch.setattr(os, "mkdir", watching_mkdir)
    return found


def lasts(events: list[Event], path: Path) -> None:
    """The last time that a file got its name, its content was synced just before and its folder just after."""
    named = max(i for i, event in enumerate(events) if event == ("named", path))
    temporary = path.with_name(path.name + durable.TEMPORARY)
    assert events[named - 1] == ("synced", temporary), f"'{path.name}' was renamed before its content was on the disk"
    assert events[named + 1] == ("synced", path.parent), f"the folder of '{path.name}' was not synced after the rename"


def folder_lasts(events: list[Event], folder: Path) -> None:
    """The folder above was synced after it was made, and before a file in it was."""
    after = events[events.index(("made", folder)) + 1 :]
    inside = next(i for i, (kind, path) in enumerate(after) if kind == "synced" and folder in path.parents)
    assert ("synced", folder.parent) in after[: inside + 1], f"the entry of '{folder.name}' was not synced"


def test_a_file_that_is_replaced(events: list[Event], tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        durable.write_whole(tmp_path / "note.txt", content)
        lasts(events, tmp_path / "note.txt")
    assert (tmp_path / "note.txt").read_bytes() == b"new"


def test_a_line_that_is_appended(events: list[Event], tmp_path: Path) -> None:
    durable.append_line(tmp_path / "lines", "one")
    durable.append_line(tmp_path / "lines", "two")
    assert [event for event in events if event[1] == tmp_path / "lines"] == [("synced", tmp_path / "lines")] * 2
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


def test_a_saved_ensemble(events: list[Event], tmp_path: Path) -> None:
    folder = tmp_path / "results" / "mine"
    forde.Ensemble(lambda: torch.nn.Linear(2, 2), 2).save(folder)
    for name in ("model.safetensors", "config.json"):
        lasts(events, folder / name)
    order = [event for event in events if event[0] == "named"]
    assert order[-1][1].name == "config.json", "its presence says that the ensemble is whole"
    for made in (folder.parent, folder):
        folder_lasts(events, made)


def test_a_run(events: list[Event], tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    train(run)
    for name in ("config.json", "metrics.jsonl", "ensemble/model.safetensors", "ensemble/config.json"):
        lasts(events, run / name)
    for folder in (run.parent, run, run / "checkpoints", run / "ensemble"):
        folder_lasts(events, folder)
    # Epochs are appended after the file was made, each synced.
    made = events.index(("named", run / "metrics.jsonl"))
    assert events[made:].count(("synced", run / "metrics.jsonl")) == 3


def test_a_checkpoint_is_there_before_the_one_before_goes(events: list[Event], tmp_path: Path) -> None:
    crash(tmp_path / "run", 3, keep=1)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        lasts(events, path)
    names = [path.suffix for kind, path in events if kind == "named" and path.parent.name == "checkpoints"]
    assert names == [".safetensors", ".json"] * (len(names) // 2), "the JSON file, which makes it one, comes last"
