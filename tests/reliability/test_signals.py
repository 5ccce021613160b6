"""SIGTERM and Ctrl-C: the step is finished, everything is saved, and a sentence says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from short_runs import ensemble, metrics, result, train

from forde.__main__ import main
from forde.errors import RunInterruptedError
from forde.training.signals import stop_requests

HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)
"""What a closed terminal sends; Windows has none."""
TRAIN = (
    "train", "--data", "digits", "--hidden", "64", "--members", "2", "--epochs", "80", "--resume",
    "--checkpoint-minutes", "0.001", "--device", "cpu",
)  # fmt: skip


def command(run: Path, *more: str) -> list[str]:
    code = "import sys, torch; torch.set_num_threads(1); from forde.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", code, *TRAIN, "--run", str(run), *more]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run(command(folder / "run"), check=True, capture_output=True, cwd=folder)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
class TestCommandLine:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (HANGUP, 129)])
    def test_stops_says_how_to_go_on_and_goes_on(
        self, number: signal.Signals, code: int, tmp_path: Path, whole: Path
    ) -> None:
        run = tmp_path / "run"
        process = subprocess.Popen(
            command(run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        self.wait_for_an_epoch(run, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors
        assert errors.startswith(f"training stopped by {number.name} at epoch ") and errors.count("\n") == 1
        assert f"everything is saved in '{run}', go on with resume=True (--resume)." in errors
        assert not (run / "ensemble").exists()
        again = subprocess.run(command(run), capture_output=True, text=True, check=False, cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        assert "after 80 epochs" in again.stdout and str(run / "ensemble") in again.stdout
        assert result(run) == result(whole) and metrics(run) == metrics(whole)

    def wait_for_an_epoch(self, run: Path, process: subprocess.Popen[Any]) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count("\n"):
                return
            time.sleep(0.01)
        raise AssertionError("the run did not begin")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--epochs", "81"), "training.epochs = 80"),
        (("--model", "resnet19"), "did you mean 'resnet18'"),
        (("--method", "forde-pcs"), "did you mean 'forde-pca'"),
        (("--data", "digitz"), "did you mean 'digits'"),
        (("--hidden", "a"), "128,128"),
        (("--non-finite", "skipp"), "did you mean 'skip'"),
        (("--data", "classification-2d", "--model", "resnet18"), "needs images"),
        (("--data", "classification-2d", "--augment"), "needs images"),
    ],
)
@pytest.mark.slow
def test_mistakes_on_the_command_line_are_one_sentence(
    more: tuple[str, ...],
    message: str,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["forde", *TRAIN, "--run", str(whole), *more])
    assert main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith("Error: ") and errors.count("\n") == 1 and message in errors


class Signal:
    """Sends a signal to this process when an epoch has been recorded."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __call__(self, record: Any) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, HANGUP])
def test_in_python(number: signal.Signals, tmp_path: Path) -> None:
    train(tmp_path / "whole")
    before = signal.getsignal(number)
    with pytest.raises(RunInterruptedError, match="resume=True") as raised:
        train(tmp_path / "run", callback=Signal(number), checkpoint_minutes=None)
    assert raised.value.signal == number and "at epoch 1, step 0" in str(raised.value)
    assert signal.getsignal(number) == before
    train(tmp_path / "run", resume=True)
    assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_signal_in_the_last_moment_is_not_lost(tmp_path: Path) -> None:
    """It arrives after the last step; the process must end all the same."""
    sent = iter([False, False, True])

    def late(module: object, inputs: object, output: object) -> None:
        if not module.training and next(sent):  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)  # while the last epoch is being diagnosed

    trained = ensemble()
    trained.members[0].register_forward_hook(late)
    with pytest.raises(RunInterruptedError, match="at epoch 3, step 0"):
        train(tmp_path / "run", trained)
    history = train(tmp_path / "run", resume=True)
    assert len(history) == 3 and len(metrics(tmp_path / "run")) == 3


def test_without_a_folder_signals_are_left_alone() -> None:
    seen = []
    train(callback=lambda record: seen.append(signal.getsignal(signal.SIGINT)))
    assert set(seen) == {signal.getsignal(signal.SIGINT)}


def test_second_interrupt_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), stop_requests():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_another_thread_trains_without_handlers(tmp_path: Path) -> None:
    done = []
    thread = threading.Thread(target=lambda: done.append(train(tmp_path / "run")))
    thread.start()
    thread.join()
    assert len(done[0]) == 3 and len(metrics(tmp_path / "run")) == 3


@pytest.fixture
def ignored(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that whoever started us wants ignored: `&` in a script does so with SIGINT, `nohup` with SIGHUP."""
    before = signal.signal(request.param, signal.SIG_IGN)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("ignored", [signal.SIGINT, HANGUP, signal.SIGTERM], indirect=True)
def test_an_ignored_signal_stays_ignored(ignored: signal.Signals, tmp_path: Path) -> None:
    history = train(tmp_path / "run", callback=Signal(ignored))
    assert len(history) == 3 and (tmp_path / "run" / "ensemble").exists()
    assert signal.getsignal(ignored) is signal.SIG_IGN


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a terminal of its own")
def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """The terminal takes its process with SIGHUP, and every word to it fails; the run is saved all the same."""
    import pty

    run = tmp_path / "run"
    ours, theirs = pty.openpty()
    attach = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    _, flag, code, *rest = command(run)
    process = subprocess.Popen(
        [sys.executable, flag, attach + code, *rest], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    reader = threading.Thread(target=drain, args=(ours,), daemon=True)
    reader.start()
    TestCommandLine().wait_for_an_epoch(run, process)
    hang_up(ours)
    assert process.wait(timeout=60) == 129
    assert "stopped by SIGHUP" in (run / "log.txt").read_text() and list((run / "checkpoints").glob("*.json"))


def drain(descriptor: int) -> None:
    """Read what the terminal shows, as its window would, until it is closed."""
    with suppress(OSError):
        while os.read(descriptor, 1 << 16):
            pass


def hang_up(descriptor: int) -> None:
    """Close the window; reading in another thread would keep it open, so it is replaced by nothing."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
