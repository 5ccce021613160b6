"""A run notes the state of the git repository around it, which may be a stranger's and must not run anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forde.training.git_state import git_state

pytestmark = pytest.mark.skipif(shutil.which("git") is None or os.name != "posix", reason="needs git and a shell")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One commit of one file, in the folder where the process is; nothing of the user's own settings."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "file.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a mark where it is run."""
    path = tmp_path / "program"
    path.write_text(f'#!/bin/sh\ntouch "{tmp_path / "ran"}"\n')
    path.chmod(0o755)
    return path


def monitor(folder: Path, program: Path) -> None:
    git(folder, "config", "core.fsmonitor", str(program))


def hooks(folder: Path, program: Path) -> None:
    """Called when the index is written, which a touched file makes `status` do."""
    shutil.copy(program, folder / ".git" / "hooks" / "post-index-change")
    os.utime(folder / "file.txt", (1, 1))


def content_filter(folder: Path, program: Path) -> None:
    git(folder, "config", "filter.mine.clean", str(program))
    (folder / ".gitattributes").write_text("*.txt filter=mine\n")
    (folder / "file.txt").write_text("two\n")


def included_filter(folder: Path, program: Path) -> None:
    (folder / "more").write_text(f'[filter "mine"]\n\tprocess = {program}\n')
    git(folder, "config", "include.path", "../more")
    (folder / ".git" / "info" / "attributes").write_text("*.txt filter=mine\n")
    (folder / "file.txt").write_text("two\n")


def submodule(folder: Path, program: Path) -> None:
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    git(folder, "submodule", "--quiet", "add", str(other), "inner")
    git(folder, "commit", "--quiet", "-m", "inner")
    git(folder / "inner", "config", "core.fsmonitor", str(program))


def missing_objects(folder: Path, program: Path) -> None:
    """A partial clone asks its remote for what it lacks."""
    tree = git(folder, "rev-parse", "HEAD^{tree}")
    (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    (folder / ".git" / "index").unlink()
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(folder.parent / "elsewhere"),
        "remote.origin.uploadpack": str(program),
    }.items():
        git(folder, "config", key, value)


def alias(folder: Path, program: Path) -> None:
    for name in ("status", "rev-parse", "config"):
        git(folder, "config", f"alias.{name}", f"!{program}")


def own_git(folder: Path, program: Path) -> None:
    shutil.copy(program, folder / "git")


TRAPS: dict[str, Callable[[Path, Path], None]] = {
    trap.__name__: trap
    for trap in (monitor, hooks, content_filter, included_filter, submodule, missing_objects, alias, own_git)
}
HARMLESS_FOR_PLAIN_GIT = {"alias", "own_git"}


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_of_the_folder_runs(
    trap: str, repository: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TRAPS[trap](repository, program)
    commit = git(repository, "rev-parse", "HEAD")
    mark = program.with_name("ran")
    mark.unlink(missing_ok=True)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}" if trap == "own_git" else os.environ["PATH"])
    found = git_state()
    assert not mark.exists()
    assert found is None if trap == "own_git" else found is not None and found["commit"] == commit
    if trap not in HARMLESS_FOR_PLAIN_GIT:  # the trap is one: plain git falls into it
        subprocess.run(["git", "status", "--porcelain"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        assert mark.exists()


def test_what_is_said_of_an_honest_repository(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert git_state() == {"commit": commit, "dirty": False}
    (repository / "file.txt").write_text("two\n")
    assert git_state() == {"commit": commit, "dirty": True}
    git(repository, "checkout", "--quiet", "file.txt")
    assert git_state() == {"commit": commit, "dirty": False}
    (repository / "new.txt").write_text("new\n")
    assert git_state() == {"commit": commit, "dirty": True}


def test_filters_of_the_user_do_not_hide_changes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`git lfs install` writes some into the user's settings; those of the repository make it unknown."""
    (tmp_path / "settings").write_text('[filter "lfs"]\n\tclean = cat\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    assert git_state() == {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}
    git(repository, "config", "filter.mine.clean", "cat")
    assert git_state() == {"commit": git(repository, "rev-parse", "HEAD"), "dirty": None}


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_state() is None
