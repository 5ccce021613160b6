"""What people see of a training: a bar on a terminal and in a notebook, lines in the log elsewhere, the time left."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from functools import partialmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.progress import Progress
from torch import nn

import forde
from forde.progress import Pace

EPOCHS = 3
LINE = re.compile(r"epoch (\d) \((\d) of 3\): loss .*in [\d.e-]+ s")


def train(**options: Any) -> forde.training.History:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 4, generator=generator), torch.arange(40) % 3
    outputs = options.pop("outputs", 3)
    ensemble = forde.Ensemble(lambda: nn.Linear(4, outputs), 2, seed=0, **options.pop("of", {}))
    given = {"epochs": EPOCHS, "batch_size": 8, "engine": "eager", **options}
    return forde.fit(ensemble, "forde-identity", (x, given.pop("y", y)), **given)


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What somebody hears who asked for INFO."""
    caplog.set_level(logging.INFO)
    return caplog


def epochs_in(messages: list[str]) -> list[str]:
    return [message for message in messages if LINE.search(message)]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


class TestWithoutATerminal:
    def test_there_is_a_line_for_each_epoch(self, heard: pytest.LogCaptureFixture, capsys: Any) -> None:
        history = train(validation=0.25)
        lines = epochs_in(heard.messages)
        assert [line[:16] for line in lines] == ["epoch 0 (1 of 3)", "epoch 1 (2 of 3)", "epoch 2 (3 of 3)"]
        assert ["left" in line for line in lines] == [True, True, False]
        last = history.records[-1]
        for name in ("nll", "accuracy", "ece"):
            assert f"{name} {last[f'validation_{name}']:.4g}" in lines[-1]
        assert f"loss {last['loss']:.4g}" in lines[-1]
        marked = [epoch for epoch, line in enumerate(lines) if "(best so far)" in line]
        assert marked[0] == 0 and marked[-1] == history.best_epoch
        assert capsys.readouterr().err == ""

    def test_of_regression(self, heard: pytest.LogCaptureFixture) -> None:
        history = train(validation=0.25, of={"likelihood": "regression"}, outputs=1, y=torch.randn(40), lr=0.01)
        last = history.records[-1]
        for name in ("nll", "rmse", "crps"):
            assert f"{name} {last[f'validation_{name}']:.4g}" in epochs_in(heard.messages)[-1]

    @pytest.mark.parametrize("verbose", [True, False])
    def test_a_run_has_them_in_its_log(self, verbose: bool, heard: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        train(run=tmp_path / "run", verbose=verbose)
        assert len(epochs_in((tmp_path / "run" / "log.txt").read_text().splitlines())) == EPOCHS
        assert len(epochs_in(heard.messages)) == (EPOCHS if verbose else 0)

    def test_nothing_where_nobody_asked(self, heard: pytest.LogCaptureFixture) -> None:
        train(verbose=False)
        assert not epochs_in(heard.messages)

    def test_the_old_word_still_works(self, heard: pytest.LogCaptureFixture) -> None:
        train(progress=False)
        assert not epochs_in(heard.messages) and "progress=False is now called verbose" in heard.text

    def test_the_command_line(self, tmp_path: Path) -> None:
        command = "train --data digits --model mlp --members 2 --epochs 3 --method deep-ensemble --out run"
        done = subprocess.run(
            [sys.executable, "-m", "forde", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert len(epochs_in(done.stdout.splitlines())) == EPOCHS and done.stderr == ""


@pytest.mark.parametrize("value", ["yes", 2, None])
def test_verbose_is_yes_or_no(value: Any) -> None:
    with pytest.raises(forde.FordeError, match=r"verbose is .*, but True or False was expected"):
        train(verbose=value)


class TestOnATerminal:
    def test_a_bar_and_no_lines(
        self, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture, capsys: Any, tmp_path: Path
    ) -> None:
        on_a_terminal(monkeypatch)
        history = train(validation=0.25, run=tmp_path / "run")
        drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
        assert "forde-identity" in drawn and "3/3" in drawn
        for name in ("nll", "accuracy", "ece"):
            assert f"{name} {history.records[-1][f'validation_{name}']:.4g}" in drawn
        assert not epochs_in(heard.messages)
        assert len(epochs_in((tmp_path / "run" / "log.txt").read_text().splitlines())) == EPOCHS

    def test_it_moves_within_an_epoch_and_tells_the_time_left(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        on_a_terminal(monkeypatch)
        monkeypatch.setattr("forde.training.watching.EVERY", 0.0)
        # A short training may end before rich draws again by itself.
        monkeypatch.setattr(Progress, "update", partialmethod(Progress.update, refresh=True))
        seen: list[tuple[float, float | None]] = []
        left = Pace.left

        def noted(pace: Pace, done: float) -> float | None:
            seen.append((done, left(pace, done)))
            return seen[-1][1]

        monkeypatch.setattr(Pace, "left", noted)
        train()
        assert [done for done, _ in seen[:6]] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.2])
        assert all(seconds is not None for _, seconds in seen)
        assert "left" in capsys.readouterr().err

    def test_silence_where_it_was_asked_for(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        on_a_terminal(monkeypatch)
        train(verbose=False)
        assert capsys.readouterr().err == ""


def test_the_pace_is_that_since_the_first_part() -> None:
    """Which also compiles; and of a run that was resumed only what this process has done."""
    times = iter([0.0, 100.0, 101.0, 102.5])
    pace = Pace(10, done=5.0, clock=lambda: next(times))
    assert [pace.left(6.0), pace.left(7.0), pace.left(8.0)] == [400.0, 3.0, 2.5]
    assert Pace(10).left(0.0) is None


CELL = """
import torch, forde
from torch import nn
x, y = torch.randn(40, 4), torch.arange(40) % 3
ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 2)
history = forde.fit(ensemble, "forde-identity", (x, y), epochs=3, batch_size=8, validation=0.25, engine="eager")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="needs a notebook's kernel")
def test_a_notebook_has_a_bar(tmp_path: Path) -> None:
    """A kernel of its own runs the cell; what it leaves in the notebook is the bar at its end."""
    script = (
        "import sys, nbformat\nfrom nbclient import NotebookClient\n"
        "notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(open(sys.argv[1]).read())])\n"
        "NotebookClient(notebook, timeout=120, kernel_name='python3').execute()\n"
        "nbformat.write(notebook, sys.argv[2])\n"
    )
    (tmp_path / "cell.py").write_text(CELL)
    paths = [str(tmp_path / name) for name in ("cell.py", "notebook.ipynb")]
    subprocess.run([sys.executable, "-c", script, *paths], check=True, capture_output=True, timeout=180)
    import nbformat

    (output,) = nbformat.read(paths[1], as_version=4).cells[0].outputs
    assert output.output_type == "display_data", "no stream of text, and no warning"
    assert re.search(r"forde-identity  3/3  loss .*validation nll .*ece", output.data["text/plain"])
    assert '<progress value="3.000" max="3"' in output.data["text/html"]
