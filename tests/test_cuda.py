"""On an NVIDIA GPU: the same numbers as on the CPU, for every method, network and engine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cases import METHODS, NETWORKS, make_data, make_ensemble, make_method

import forde

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def exact_arithmetic():
    """cuDNN chooses algorithms by timing otherwise, and their rounding differs."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        yield


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", METHODS)
def test_same_as_on_the_cpu(case: str, network: str, engine: str) -> None:
    states = []
    for device in ("cpu", "cuda"):
        ensemble = make_ensemble(network, dtype=torch.float64)
        data = make_data(network, torch.float64)
        forde.fit(
            ensemble,
            make_method(case),
            data,
            epochs=2,
            batch_size=12,
            lr=0.05,
            device=device,
            engine=engine,
            progress=False,
        )
        assert ensemble.device.type == device
        states.append({name: tensor.cpu() for name, tensor in ensemble.state_dict().items()})
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("make", [forde.models.resnet18, forde.models.preact_resnet18, forde.models.wrn16_4])
def test_bf16_on_residual_networks(make) -> None:
    x, y = torch.randn(64, 3, 32, 32), torch.arange(64) % 10
    losses = {}
    for precision in ("float32", "bf16"):
        ensemble = forde.Ensemble(lambda: make(10), 3)
        history = forde.fit(
            ensemble,
            forde.method("forde-pca", rank=64),
            (x, y),
            epochs=2,
            batch_size=32,
            precision=precision,
            device="cuda",
        )
        losses[precision] = history["loss"][0]
        assert all(math.isfinite(value) for value in history["repulsion"])
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.05)


def test_predict_save_load(tmp_path: Path) -> None:
    x, y = make_data("conv+batchnorm")
    ensemble = make_ensemble("conv+batchnorm")
    forde.fit(ensemble, "forde-pca", (x, y), epochs=1, device="cuda", progress=False)
    prediction = ensemble.predict(x)
    assert prediction.probs.device.type == "cpu"
    loaded = forde.Ensemble.load(ensemble.save(tmp_path), NETWORKS["conv+batchnorm"], device="cuda")
    torch.testing.assert_close(loaded.predict(x).probs, prediction.probs)
