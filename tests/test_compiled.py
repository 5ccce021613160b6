"""The compiled engine gives the same numbers as the plain ones, or steps aside and says why."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from cases import METHODS, NETWORKS, make_data, make_ensemble, make_method
from torch import Tensor, nn

import forde
from forde.compile.tracing import trace
from forde.engine import make_engine
from forde.kernels import RBF
from forde.models import MLP
from forde.priors import TrainingData
from forde.rules import SGE, SSGE, SVGD, WGD
from forde.spaces import Features, InputGradients, Outputs, Weights
from forde.step import Step
from forde.step.records import Batch
from steps import compiled, compiled_stack, is_plain, loop, stack

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
STEPS = {"cpu": 3, "cuda": 5}
"""On a GPU the third compiled step and all after it are replays of a CUDA graph."""


@pytest.fixture(autouse=True)
def strict_float32() -> Iterator[None]:
    """On a GPU convolutions are of TensorFloat-32 otherwise."""
    if not torch.cuda.is_available():
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        yield


def without_compiler(engine: Step) -> Step:
    """Traced operations run one by one: the same program, and no C++ compiler at work."""
    engine.fuse = False
    return engine


def train(engine: Step, x: Tensor, y: Tensor, steps: int = 3) -> dict[str, Tensor]:
    """Parameters and buffers after some steps of SGD, in float64."""
    optimizer = torch.optim.SGD(engine.runner.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for step in range(steps):
        engine.update(x, y, optimizer, step=step, data_size=100)
    engine.settle()
    engine.close()
    return {name: tensor.double() for name, tensor in engine.runner.ensemble.state_dict().items()}


def prepare(method: forde.Method, ensemble: forde.Ensemble, x: Tensor) -> forde.Method:
    return method.prepare(ensemble.members[0], TrainingData(lambda: iter([x]), len(x)))


def relative_error(found: dict[str, Tensor], start: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of how far training has moved everything."""
    wrong = sum(float((found[name] - expected[name]).square().sum()) for name in expected)
    moved = sum(float((start[name].double() - expected[name]).square().sum()) for name in expected)
    return (wrong / moved) ** 0.5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory", ["speed", "low"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", METHODS)
def test_every_method_moves_as_in_float64(case: str, network: str, memory: str, device: str) -> None:
    x, y = (tensor.to(device) for tensor in make_data(network, torch.float64))
    exact = make_ensemble(network, dtype=torch.float64).to(device).train()
    start = {name: tensor.clone() for name, tensor in exact.state_dict().items()}
    expected = train(loop(exact, prepare(make_method(case), exact, x)), x, y, STEPS[device])
    ensemble = make_ensemble(network).to(device).train()
    kind = compiled_stack if network == "mlp" and memory == "speed" else compiled
    engine = without_compiler(kind(ensemble, prepare(make_method(case), ensemble, x.float()), memory=memory))
    found = train(engine, x.float(), y, STEPS[device])
    assert not engine.is_plain
    assert relative_error(found, start, expected) < 1e-4


SPACES = {"weights": Weights(), "outputs": Outputs(), "features": Features(), "input gradients": InputGradients()}
RULES = {"wgd": WGD(), "svgd": SVGD(), "sge": SGE(), "ssge": SSGE()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("space", SPACES)
def test_every_space_with_every_rule(space: str, rule: str, device: str) -> None:
    x, y = (tensor.to(device) for tensor in make_data("conv+batchnorm", torch.float64))
    method = forde.Method(space=SPACES[space], kernel=RBF(bandwidth="per_sample"), rule=RULES[rule])

    def members(dtype: torch.dtype = torch.float32) -> forde.Ensemble:
        return make_ensemble("conv+batchnorm", dtype=dtype).to(device).train()

    exact = members(torch.float64)
    start = {name: tensor.clone() for name, tensor in exact.state_dict().items()}
    expected = train(loop(exact, method), x, y, STEPS[device])
    low = train(loop(members(torch.float64), method, memory="low"), x, y, STEPS[device])
    assert relative_error(low, start, expected) < 1e-9
    for memory in ("speed", "balanced"):
        engine = without_compiler(compiled(members(), method, memory=memory))
        found = train(engine, x.float(), y, STEPS[device])
        assert not engine.is_plain
        assert relative_error(found, start, expected) < 1e-4


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: forde.models.resnet18(3), (3, 8, 8)),
    "preact-resnet18": (lambda: forde.models.preact_resnet18(3), (3, 8, 8)),
    "wrn16-4": (lambda: forde.models.wrn16_4(3), (3, 8, 8)),
    "mlp": (lambda: MLP(6, [8, 8], 3, batch_norm=True), (6,)),
}


def gradient_and_buffers(engine: Step, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """After one step, in one piece each."""
    engine.update(x.to(next(engine.runner.ensemble.parameters()).dtype), y)
    assert not is_plain(engine)
    gradient = torch.cat([of_members.flatten().double() for of_members in engine.runner.member_gradients().values()])
    buffers = torch.cat([b.flatten().double() for b in engine.runner.ensemble.buffers()])
    engine.close()
    return gradient, buffers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_gradient_of_every_model(model: str, device: str) -> None:
    """On a GPU with the compiler at work, which takes a minute for each."""
    make, shape = MODELS[model]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, *shape, dtype=torch.float64, generator=generator).to(device)
    y = (torch.arange(6) % 3).to(device)
    method = forde.method("forde-identity")

    def members(dtype: torch.dtype = torch.float32) -> forde.Ensemble:
        return forde.Ensemble(make, 2).to(device=device, dtype=dtype).train()

    exact = gradient_and_buffers(loop(members(torch.float64), method), x, y)
    engines: list[Step] = [loop(members(), method), loop(members(), method, memory="low")]
    engines += [compiled(members(), method), compiled(members(), method, memory="low")]
    engines += [stack(members(), method)] if model == "mlp" else []
    for engine in engines:
        for found, expected in zip(
            gradient_and_buffers(engine if device == "cuda" else without_compiler(engine), x, y), exact, strict=True
        ):
            assert float((found - expected).norm() / expected.norm()) < 1e-4, type(engine)


@pytest.mark.parametrize("device", DEVICES)
def test_what_ran_before_does_not_change_the_trace(device: str) -> None:
    """Otherwise compilers would not find it in their caches. On a GPU autograd works in several threads."""
    ensemble = forde.Ensemble(MODELS["wrn16-4"][0], 2).to(device).train()
    engine = compiled(ensemble, forde.method("forde-identity"))
    x, y = torch.randn(4, 3, 8, 8, device=device), torch.tensor([0, 1, 2, 0], device=device)

    def traced() -> list[str]:
        z = x.flatten(1).unsqueeze(0)
        found = trace(runner, engine.method, 0, batch, z, metric=None, fused=True, recompute=False)
        assert found.second is not None
        return [found.first.code, found.second.code]

    runner = engine.runner.like(policy=replace(engine.runner.policy, traced=True, compiler=True))
    batch = Batch(runner.laid_out(x), y)
    first = traced()
    engine.plain.update(x, y)
    assert traced() == first
    for _ in range(3):
        loop(ensemble, forde.method("forde-identity")).update(x, y)
    assert traced() == first


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch's compiler needs g++ on a CPU")
@pytest.mark.parametrize("case", ["deep-ensemble", "forde-pca", "forde-pca, on a quarter of the batch"])
def test_with_the_compiler(case: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forde")
    x, y = make_data("conv+batchnorm")
    one, other = make_ensemble("conv+batchnorm").train(), make_ensemble("conv+batchnorm").train()
    start = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    expected = train(loop(one, prepare(make_method(case), one, x)), x, y)
    found = train(compiled(other, prepare(make_method(case), other, x)), x, y)
    assert relative_error(found, start, expected) < 1e-4
    assert "engine: compiling the step" in caplog.text and "operations fused; 1 function for 3 units" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch's compiler needs g++ on a CPU")
@pytest.mark.parametrize("network", NETWORKS)
def test_batches_in_any_order_of_memory_are_the_same_to_a_compiled_step(network: str) -> None:
    x, y = make_data(network)
    engine = compiled(make_ensemble(network).train(), forde.method("forde-identity"))
    strided = x.repeat_interleave(2, dim=-1)[..., ::2], y.repeat_interleave(2)[::2]
    swapped = x.transpose(0, 1).contiguous().transpose(0, 1), y
    gradients = []
    for batch in ((x, y), strided, swapped):
        engine.update(*batch)
        gradients.append(torch.cat([p.grad.flatten() for p in engine.runner.parameters()]))
    assert not engine.is_plain
    engine.close()
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0])


class TestFit:
    """Through `forde.fit`, as a user would."""

    def fit(self, network: Callable[[], nn.Module], engine: str, n: int = 44, **options: object):
        x, y = torch.randn(n, 6, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 3
        ensemble = forde.Ensemble(network, 3)
        rate = {} if "optimizer" in options else {"lr": 0.05}
        options = {"epochs": 3, "batch_size": 12, **rate, **options}
        history = forde.fit(
            ensemble, options.pop("method", "forde-pca"), (x, y), engine=engine, verbose=False, **options
        )
        return ensemble, history

    @pytest.fixture(autouse=True)
    def no_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)

    def check_same_as_eager(self, network: Callable[[], nn.Module], **options: object) -> None:
        found = [self.fit(network, engine, **options) for engine in ("eager", "compiled")]
        for (name, a), b in zip(found[0][0].state_dict().items(), found[1][0].state_dict().values(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
        for key in ("loss", "repulsion", "bandwidth"):
            assert found[1][1][key] == pytest.approx(found[0][1][key], rel=1e-4, nan_ok=True)

    def test_last_batch_schedules_and_gaps(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        method = forde.method("forde-identity", repulsion_weight=lambda epoch: 3.0 - epoch, repulsion_every=2)
        self.check_same_as_eager(lambda: MLP(6, [8], 3, batch_norm=True), method=method, drop_last=False)
        assert caplog.text.count("engine: compiled in") == 2, "one with repulsion and one without"

    @pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop])
    def test_other_optimizers(self, optimizer: type[torch.optim.Optimizer]) -> None:
        self.check_same_as_eager(
            lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), optimizer=lambda p: optimizer(p, 1e-2)
        )

    def test_members_that_differ(self) -> None:
        widths = iter([4, 6, 8] * 2)
        self.check_same_as_eager(lambda: MLP(6, [next(widths)], 3), method="function-rde")

    def test_frozen_parameters_and_unused_ones(self) -> None:
        def network() -> nn.Module:
            layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            layers[0].weight.requires_grad_(False)
            layers.register_parameter("unused", nn.Parameter(torch.ones(2)))
            return layers

        self.check_same_as_eager(network)

    def test_tensors_that_are_no_buffers_may_differ_between_members(self) -> None:
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.mask = nn.Linear(6, 3), torch.rand(6)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(torch.tanh(x * self.mask))

        self.check_same_as_eager(Masked)

    def test_branching_on_data_is_left_to_the_plain_engine(self, caplog: pytest.LogCaptureFixture) -> None:
        class Branching(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(6, 3)

            def forward(self, x: Tensor) -> Tensor:
                y = self.layer(x)
                return torch.tanh(y) if float(y.detach().sum()) > 0 else y

        caplog.set_level("INFO", "forde")
        self.check_same_as_eager(Branching)
        (line,) = [r.message for r in caplog.records if "after all" in r.message]
        assert line.startswith("engine: eager after all, it cannot be traced or compiled (")

    def test_branching_on_pythons_random_numbers_is_noticed(self, caplog: pytest.LogCaptureFixture) -> None:
        class Skipping(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.last(torch.tanh(self.first(x)) if random.random() < 0.5 else x)

        caplog.set_level("INFO", "forde")
        random.seed(0)  # the plain step and the trace then take different branches
        self.fit(Skipping, "compiled")
        assert "it draws Python's random numbers" in caplog.text

    def test_loss_that_is_not_finite_stops(self) -> None:
        with pytest.raises(forde.FordeError, match="the loss of member"):
            self.fit(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), "compiled", lr=1e12, epochs=20)

    @pytest.mark.parametrize("memory", ["speed", "balanced", "low"])
    def test_dropout_is_new_in_each_step(self, memory: str) -> None:
        def network() -> nn.Module:
            return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))

        x, y = torch.randn(12, 6), torch.arange(12) % 3
        engine = compiled(forde.Ensemble(network, 2).train(), forde.method("forde-identity"), memory=memory)
        losses = []
        for step in range(4):
            losses.append(float(engine.update(x, y, step=step).losses[0]))
        assert not engine.is_plain and len(set(losses)) == 4

    def test_low_memory_draws_dropout_once(self) -> None:
        """z = ∂f/∂x is the masked weight row: a second mask in phase 3 would show in the gradient's zeros."""

        def network() -> nn.Module:
            return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))

        x, y = torch.randn(1, 6).expand(2, 6), torch.tensor([0, 0])
        for kind in (loop, compiled):
            engine = kind(forde.Ensemble(network, 2).train(), forde.method("forde-identity", prior=()), memory="low")
            for step in range(5):
                report = engine.update(x, y, step=step)
                seen = report.z.abs().sum(1) > 0  # [M, D] inputs that some sample kept
                for i in range(2):
                    moved = engine.runner.groups[i]["1.weight"].grad.abs().sum(0) > 0
                    assert not (moved & ~seen[i]).any()


@pytest.mark.parametrize(("steps", "compiles"), [(10, False), (10**7, True)])
def test_compiles_only_in_runs_that_are_long_enough(
    steps: int, compiles: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "forde")
    x, y = make_data("mlp")
    engine = without_compiler(compiled(make_ensemble("mlp").train(), forde.method("forde-identity"), steps=steps))
    for step in range(3):
        engine.update(x, y, step=step)
        assert not engine.kinds, "the first steps are timed"
    engine.update(x, y, step=3)
    assert bool(engine.kinds) == compiles
    said = "engine: compiled, which takes about" if compiles else "engine: eager after all, compiling would take"
    assert said in caplog.text


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_one_member_does_not_repel(engine: str) -> None:
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    history = forde.fit(
        forde.Ensemble(lambda: nn.Linear(6, 3), 1), "forde-pca", (x, y), epochs=1, batch_size=8, engine=engine
    )
    assert history["repulsion"] == [0.0]


def test_vectorized_refuses_to_save_memory() -> None:
    with pytest.raises(forde.FordeError, match=r"engine='vectorized' runs all members at once, so memory='low'"):
        make_engine("vectorized", forde.Ensemble(lambda: nn.Linear(6, 3), 2), forde.method("forde-pca"), memory="low")


def test_unknown_memory() -> None:
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    with pytest.raises(forde.FordeError, match="memory"):
        forde.fit(forde.Ensemble(lambda: nn.Linear(6, 3), 2), "forde-pca", (x, y), epochs=1, memory="little")
