"""On an NVIDIA GPU a resumed run agrees with the uninterrupted one within the tolerance of floats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from short_runs import STEPS, crash, ensemble, metrics, train

import forde
from forde.models import MLP

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("optimizer", [None, lambda p: torch.optim.Adam(p, lr=1e-3)], ids=["SGD", "Adam"])
@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
def test_resumed_run_agrees(engine: str, optimizer: object, tmp_path: Path) -> None:
    def make() -> forde.Ensemble:
        # Dropout under the compiled engine draws in its own order, which a new capture begins anew.
        return forde.Ensemble(lambda: MLP(5, [8], 3, batch_norm=True), 2) if engine == "compiled" else ensemble()

    options = {"device": "cuda", "engine": engine, "optimizer": optimizer}
    train(tmp_path / "whole", make(), **options)
    # Left on one engine, gone on with on another.
    crash(tmp_path / "run", STEPS + 2, trained=make(), **{**options, "engine": engine.replace("compiled", "eager")})
    train(tmp_path / "run", make(), resume=True, **options)
    for found, expected in zip(metrics(tmp_path / "run"), metrics(tmp_path / "whole"), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert found["lr"] == expected["lr"]
    states = [load_file(tmp_path / name / "ensemble" / "model.safetensors") for name in ("run", "whole")]
    for name, expected in states[1].items():
        torch.testing.assert_close(states[0][name], expected, rtol=1e-3, atol=1e-4, msg=name)


def test_run_begun_on_the_gpu_goes_on_on_the_cpu(tmp_path: Path) -> None:
    def make() -> forde.Ensemble:
        return forde.Ensemble(lambda: MLP(5, [8], 3, batch_norm=True), 2)

    train(tmp_path / "whole", make(), device="cpu")
    crash(tmp_path / "run", STEPS + 2, trained=make(), device="cuda", engine="eager")
    train(tmp_path / "run", make(), device="cpu", resume=True)
    for found, expected in zip(metrics(tmp_path / "run"), metrics(tmp_path / "whole"), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
