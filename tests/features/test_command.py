"""`python -m forde features` as a user meets it, with a small stand-in for the package of the backbone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from forde.__main__ import main
from forde.data.features import feature_parts, load_features

PACKAGE = '''
import time
from torch import nn

class Padded(nn.Conv2d):
    """As the package's: padding and convolution in one."""
    def __init__(self):
        super().__init__(3, 4, 32, stride=32, bias=False)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x):
        return self._conv_forward(self.static_padding(x), self.weight, self.bias)

class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        self._conv_stem, self._bn0, self._fc = Padded(), nn.BatchNorm2d(4), nn.Linear(4, 7)

    @classmethod
    def from_name(cls, name):
        assert name == "efficientnet-lite0"
        return cls()

    def forward(self, x):
        time.sleep(PAUSE)
        return self._fc(self._bn0(self._conv_stem(x)).relu().mean((2, 3)))
'''


ARGUMENTS = [
    *("forde", "features", "--backbone", "efficientnet-lite0", "--weights", "weights.pth"),
    *("--data", "digits", "--out", "features", "--device", "cpu", "--limit", "48"),
]


class Command:
    """The command in a folder of its own, with weights and the package beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "features"
        self.pause(0)
        torch.manual_seed(0)
        state = {
            "_conv_stem.weight": 0.02 * torch.randn(4, 3, 32, 32),
            **{f"_bn0.{name}": value for name, value in nn.BatchNorm2d(4).state_dict().items()},
            **{f"_fc.{name}": value for name, value in nn.Linear(4, 7).state_dict().items()},
        }
        torch.save(state, folder / "weights.pth")

    def pause(self, seconds: float) -> None:
        (self.folder / "efficientnet_lite_pytorch.py").write_text(PACKAGE.replace("PAUSE", str(seconds)))

    def started(self, *options: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(self.folder), *sys.path])
        return subprocess.Popen(
            [sys.executable, "-m", *ARGUMENTS, *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *options: str) -> tuple[int, str, str]:
        process = self.started(*options)
        out, err = process.communicate()
        return process.returncode, out, err


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_a_folder_from_one_command_and_again(command: Command) -> None:
    options = ("--corruptions", "fog,snow", "--severities", "1,5", "--foreign", "noise", "--json", "summary.json")
    code, out, err = command(*options)
    assert code == 0, err
    assert out.splitlines() == [
        "efficientnet-lite0 over digits: 7 sets, 336 images, on cpu in float32",
        "7 sets, 336 images, are in features",
    ]
    lines = err.splitlines()
    assert len(lines) == 7 and lines[0].startswith("train: 48 images, ") and "1 of 7 sets, about" in lines[0]
    assert lines[-1].startswith("corrupted/snow-5: 48 images, ") and lines[-1].endswith("(7 of 7 sets)")
    expected = ["corrupted/fog-1", "corrupted/fog-5", "corrupted/snow-1", "corrupted/snow-5", "foreign/noise"]
    assert feature_parts(command.out) == [*expected, "test", "train"]
    assert load_features(command.out).x.shape == (48, 4)
    summary = json.loads((command.folder / "summary.json").read_text())
    assert summary["finished"] and [row["images"] for row in summary["sets"]] == [48] * 7
    assert summary["backbone"]["name"] == "efficientnet-lite0" and summary["machine"]["torch"] == torch.__version__
    before = {part: (command.out / f"{part}.safetensors").read_bytes() for part in feature_parts(command.out)}
    code, out, err = command(*options)
    assert code == 0 and out.splitlines()[-1] == "7 sets, 336 images, are in features (7 of them were there already)"
    assert err.splitlines()[0] == "train: was there already (1 of 7 sets)"
    assert before == {part: (command.out / f"{part}.safetensors").read_bytes() for part in before}


def test_minutes_end_it_and_the_same_command_goes_on(command: Command) -> None:
    code, _, err = command("--minutes", "0", "--json", "summary.json")
    assert code == 75 and "Traceback" not in err
    assert "Stopped after 0 minutes: 2 of 2 sets are missing in 'features'; what was computed is saved" in err
    assert not json.loads((command.folder / "summary.json").read_text())["finished"]
    assert command("--minutes", "60")[0] == 0
    assert feature_parts(command.out) == ["test", "train"]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_what_is_there(command: Command, number: signal.Signals, code: int) -> None:
    command.pause(0.1)
    process = command.started("--batch-size", "1", "--save-seconds", "0.1")
    shards = command.out / "train.parts"
    while not list(shards.glob("*.safetensors")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code, err
    assert "Interrupted: 2 of 2 sets are missing in 'features'; what was computed is saved" in err
    assert "train: " in err and "images saved" in err
    command.pause(0)
    assert command("--batch-size", "1")[0] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--weights", "gone.pth"), "the file of weights 'gone.pth' is missing; check its name."),
        (("--weights", "efficientnet_lite_pytorch.py"), "is damaged or holds more than weights"),
        (("--backbone", "efficientnet-light0"), "did you mean 'efficientnet-lite0'?"),
        (("--corruptions", "fogg"), "unknown corruption 'fogg'; did you mean 'fog'?"),
        (("--severities", "one"), "--severities is 'one', but whole numbers of at least 1 were expected"),
        (("--splits", "", "--corruptions", "none"), "there is nothing to compute"),
        (("--store", "float8"), "unknown dtype of features 'float8'"),
        (("--data", "regression-1d", "--splits", "train"), "is a table, but images were expected"),
    ],
)
def test_mistakes_are_one_sentence(
    command: Command,
    options: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(command.folder)
    monkeypatch.syspath_prepend(str(command.folder))
    monkeypatch.delitem(sys.modules, "efficientnet_lite_pytorch", raising=False)
    monkeypatch.setattr(sys, "argv", [*ARGUMENTS, *options])
    try:
        assert main() == 1
    finally:
        sys.modules.pop("efficientnet_lite_pytorch", None)
    err = capsys.readouterr().err
    assert err.startswith("Error: ") and said in err
    assert not command.out.exists()


def test_a_mistake_ends_the_process_with_1(command: Command) -> None:
    code, _, err = command("--weights", "gone.pth")
    assert code == 1 and err == "Error: the file of weights 'gone.pth' is missing; check its name.\n"
