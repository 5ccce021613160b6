"""A process that is killed: torchrun starts all again, and the run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from forde.__main__ import main

TRAIN = (
    "train", "--data", "classification-2d", "--hidden", "16", "--members", "4", "--epochs", "20", "--device", "cpu",
    "--batch-size", "64", "--lr", "0.01", "--checkpoint-minutes", "0",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_killed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).with_name("dying_train.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--max-restarts=1"]
    done = subprocess.run(
        [*torchrun, "--", str(script), *TRAIN, "--run", str(tmp_path / "mesh"), "--mesh", "2x2"],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Error: another process of this training has ended" in done.stderr
    assert done.stdout.count("after 20 epochs") == 1  # the first process speaks for all
    log = (tmp_path / "mesh" / "log.txt").read_text()
    assert log.count("going on from checkpoint") == 1 and "finished" in log
    sessions = (tmp_path / "mesh" / "sessions.jsonl").read_text().splitlines()
    assert len(sessions) == 2

    monkeypatch.setattr(sys, "argv", ["forde", *TRAIN, "--run", str(tmp_path / "alone"), "--engine", "eager"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    found, expected = (load_file(tmp_path / name / "ensemble" / "model.safetensors") for name in ("mesh", "alone"))
    for name, tensor in expected.items():
        assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("mesh", "alone")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 20
