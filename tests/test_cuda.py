"""On an NVIDIA GPU: the same numbers as on the CPU, for every method, network and engine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cases import METHODS, NETWORKS, make_data, make_ensemble, make_method

import forde
from steps import compiled

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def exact_arithmetic():
    """cuDNN chooses algorithms by timing otherwise, and their rounding differs."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        yield


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", METHODS)
def test_same_as_on_the_cpu(case: str, network: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)  # traced and captured, soon done
    states = []
    for device in ("cpu", "cuda"):
        ensemble = make_ensemble(network, dtype=torch.float64)
        data = make_data(network, torch.float64)
        forde.fit(
            ensemble,
            make_method(case),
            data,
            epochs=4,
            batch_size=12,
            lr=0.05,
            device=device,
            engine=engine if device == "cuda" or engine == "vectorized" else "eager",
            verbose=False,
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
    forde.fit(ensemble, "forde-pca", (x, y), epochs=1, device="cuda", verbose=False)
    prediction = ensemble.predict(x)
    assert prediction.probs.device.type == "cpu"
    loaded = forde.Ensemble.load(ensemble.save(tmp_path), NETWORKS["conv+batchnorm"], device="cuda")
    torch.testing.assert_close(loaded.predict(x).probs, prediction.probs)


class TestCompiled:
    """What a compiler and a CUDA graph must not change."""

    def fit(self, network, engine: str, n: int = 60, **options: object):
        x, y = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 3
        ensemble = forde.Ensemble(network, 3)
        rate = {} if "optimizer" in options else {"lr": 0.02}
        history = forde.fit(
            ensemble, options.pop("method", "forde-pca"), (x, y), batch_size=16, device="cuda", engine=engine,
            verbose=False, **{"epochs": 4, **rate, **options},
        )  # fmt: skip
        return ensemble, history

    @staticmethod
    def convolution() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(512, 3),
        )  # fmt: skip

    @pytest.mark.parametrize("memory", ["speed", "low"])
    def test_equal_with_last_batch_schedule_and_gaps(self, memory: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        method = forde.method("forde-identity", repulsion_weight=lambda epoch: 7.0 - epoch, repulsion_every=2)
        options = {"method": method, "drop_last": False, "memory": memory, "epochs": 6}
        found = [self.fit(self.convolution, engine, **options) for engine in ("eager", "compiled")]
        assert caplog.text.count("operations fused; 1 function for 3 units") == 2, "one with repulsion and one without"
        for (name, a), b in zip(found[0][0].state_dict().items(), found[1][0].state_dict().values(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        for key in ("loss", "repulsion", "bandwidth"):
            assert found[1][1][key] == pytest.approx(found[0][1][key], rel=1e-3)

    @pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop])
    def test_other_optimizers(self, optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)
        found = [self.fit(self.convolution, e, optimizer=lambda p: optimizer(p, 1e-3)) for e in ("eager", "compiled")]
        for a, b in zip(*(ensemble.state_dict().values() for ensemble, _ in found), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)

    def test_dropout_is_drawn_anew_in_every_replay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)

        def network() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(192, 3))

        x, y = torch.randn(16, 3, 8, 8, device="cuda"), torch.arange(16, device="cuda") % 3
        ensemble = forde.Ensemble(network, 2).to("cuda").train()
        engine = compiled(ensemble, forde.method("forde-identity"))
        losses = [engine.update(x, y, step=step).losses for step in range(7)]
        assert len({float(loss[0]) for loss in losses}) == 7
        engine.close()

    def test_what_cannot_be_traced_runs_eagerly(self, caplog: pytest.LogCaptureFixture) -> None:
        class Branching(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(192, 3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.layer(x.flatten(1))
                return y if float(y.detach().sum()) > 0 else y * 1.0

        caplog.set_level("INFO", "forde")
        _, history = self.fit(Branching, "compiled")
        assert "eager after all, it cannot be traced or compiled" in caplog.text
        assert history["loss"][-1] < history["loss"][0]

    def test_loss_that_is_not_finite_stops_before_weights_are_touched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)
        x, y = torch.randn(16, 3, 8, 8, device="cuda"), torch.arange(16, device="cuda") % 3
        ensemble = forde.Ensemble(self.convolution, 2).to("cuda").train()
        engine = compiled(ensemble, forde.method("forde-identity"))
        optimizer = torch.optim.SGD(engine.runner.parameters(), lr=0.01, momentum=0.9)
        for step in range(6):
            engine.update(x, y, optimizer, step=step)
        engine.settle()
        before = [parameter.detach().clone() for parameter in ensemble.parameters()]
        with pytest.raises(forde.FordeError, match="the loss of member 0 is nan at step 6"):
            for step in range(6, 12):
                engine.update(x * float("nan"), y, optimizer, step=step)
        for parameter, value in zip(ensemble.parameters(), before, strict=True):
            assert torch.equal(parameter, value)
        engine.close()

    def test_auto_does_not_compile_short_runs(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        self.fit(self.convolution, "auto")
        assert "eager after all, compiling would take about" in caplog.text

    def test_out_of_memory_says_what_to_set(self) -> None:
        def network() -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(192, 2_000_000), torch.nn.Linear(2_000_000, 3)
            )

        torch.cuda.set_per_process_memory_fraction(0.03)
        try:
            with pytest.raises(
                forde.FordeError, match=r"ran out of GPU memory: at least .* GiB .*; use memory='low'"
            ) as error:
                self.fit(network, "eager")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert "\n" not in str(error.value)


def test_bf16_loss_curves_agree_with_eager() -> None:
    """Two epochs; the two engines differ by rounding, as two seeds do by far more."""
    x, y = torch.randn(512, 3, 32, 32), torch.arange(512) % 10
    x += torch.nn.functional.one_hot(y, 10)[:, :3, None, None] * 0.5
    curves = {}
    for engine in ("eager", "compiled"):
        ensemble = forde.Ensemble(lambda: forde.models.resnet18(10), 2)
        history = forde.fit(
            ensemble, "forde-identity", (x, y), epochs=2, batch_size=64, lr=0.02, precision="bf16", device="cuda",
            engine=engine, verbose=False,
        )  # fmt: skip
        curves[engine] = history["loss"]
    assert curves["compiled"] == pytest.approx(curves["eager"], rel=0.05)
