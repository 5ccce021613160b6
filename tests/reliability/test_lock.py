"""One process at a time trains in a folder; the second is told who does."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from short_runs import crash, metrics, result, train

import forde
from forde import folder_lock
from forde.folder_lock import NAME, locked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX processes")

HOLDS = """
import sys, time
from pathlib import Path
from forde.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
TRAINS = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from short_runs import train
def held(record):
    if record["epoch"] == 0.0:
        print("held", flush=True)
        sys.stdin.readline()
train(Path(sys.argv[1]), resume=True, callback=held)
"""


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "run").mkdir()
    process = started(HOLDS, tmp_path / "run")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_two_trainings(tmp_path: Path) -> None:
    """The second is refused and changes nothing; the first ends as if nothing had been."""
    run = tmp_path / "run"
    train(tmp_path / "whole")
    first = started(TRAINS, run, Path(__file__).parent)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for resume in (False, True):
        with pytest.raises(forde.FordeError) as raised:
            train(run, resume=resume)
        assert resume is False or f"'{run}' is in use by process {first.pid} on '{socket.gethostname()}'" in str(
            raised.value
        )
        assert "\n" not in str(raised.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    first.communicate("\n")
    assert first.returncode == 0 and metrics(run) == metrics(tmp_path / "whole")
    assert result(run) == result(tmp_path / "whole") and not (run / NAME).exists()


def test_says_who_and_since_when(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(forde.FordeError, match=rf"process {holder.pid} on '.*' \(since \d{{4}}-.*\); wait for it"):
        train(tmp_path / "run", resume=True)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {NAME}


def test_released_when_the_process_is_killed(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / NAME).exists()
    train(tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / NAME).exists()


def test_a_lock_left_behind_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).write_text("")
    train(tmp_path / "run")
    assert (tmp_path / "run" / "ensemble").is_dir() and not (tmp_path / "run" / NAME).exists()


def test_released_after_a_crash(tmp_path: Path) -> None:
    crash(tmp_path / "run", 3)
    assert not (tmp_path / "run" / NAME).exists()
    train(tmp_path / "run", resume=True)


def test_threads_of_one_process(tmp_path: Path) -> None:
    holding, done = threading.Event(), threading.Event()

    def wait(record: Any) -> None:
        holding.set()
        done.wait(30)

    thread = threading.Thread(target=train, args=(tmp_path / "run",), kwargs={"callback": wait})
    thread.start()
    holding.wait(30)
    with pytest.raises(forde.FordeError, match="in use by another thread of this process"):
        train(tmp_path / "run", resume=True)
    done.set()
    thread.join()
    assert len(metrics(tmp_path / "run")) == 3


def test_many_threads_hold_it_one_at_a_time(tmp_path: Path) -> None:
    """Also while others delete the file that somebody has just opened."""
    inside, most, entered = [], [], []

    def work() -> None:
        while len(entered) < 60:
            try:
                with locked(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    entered.append(1)
                    time.sleep(0)
                    inside.pop()
            except forde.FordeError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and not list(tmp_path.iterdir())


def test_a_finished_run_is_loaded_by_many(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run)
    with locked(run):  # whoever holds it
        assert len(train(run, resume=True)) == 3


def test_a_process_that_was_forked_does_not_hold_it(tmp_path: Path) -> None:
    """Processes that read data may outlive the one that trains by seconds."""
    reading, writing = os.pipe()
    ready, begun = os.pipe()
    with locked(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(begun, b"x")
            os.read(reading, 1)
            os._exit(0)
        assert os.read(ready, 1) == b"x"
        with pytest.raises(forde.FordeError, match="in use"), locked(tmp_path):
            pass
        held = set(folder_lock._open)
        assert len(held) == 1
        inode = os.fstat(held.pop()).st_ino
        inherited = [path for path in Path(f"/proc/{child}/fd").glob("*") if _inode(path) == inode]
    for end in (reading, writing, ready, begun):
        os.close(end)
    os.waitpid(child, 0)
    assert not inherited
    with locked(tmp_path):
        pass


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


class TestWithoutLocks:
    """A file system that carries none: the file's presence counts, and a line says so."""

    @pytest.fixture(autouse=True)
    def no_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(descriptor: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(folder_lock, "_lock", refuse)

    def left(self, folder: Path, host: str, process: int) -> None:
        (folder / NAME).write_text(json.dumps({"host": host, "process": process, "since": "then"}))

    def test_presence_counts(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with locked(tmp_path):
            assert "without locks" in caplog.text
            with pytest.raises(forde.FordeError, match="in use by another thread"), locked(tmp_path):
                pass
        with locked(tmp_path):
            pass

    def test_one_that_ended_here_is_taken_over(self, tmp_path: Path) -> None:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        self.left(tmp_path, socket.gethostname(), ended.pid)
        with locked(tmp_path):
            assert json.loads((tmp_path / NAME).read_text())["process"] == os.getpid()

    @pytest.mark.parametrize("host", ["another machine", ""])
    def test_one_elsewhere_is_not(self, host: str, tmp_path: Path) -> None:
        self.left(tmp_path, host or socket.gethostname(), os.getppid())
        with pytest.raises(forde.FordeError, match=f"process {os.getppid()} on '{host or socket.gethostname()}'"):
            locked(tmp_path).__enter__()
        assert (tmp_path / NAME).exists()
