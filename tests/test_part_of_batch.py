"""Comparing members on a part of the batch: what it is, and that every way to compute it gives the same."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import forde
from forde.compile.tracing import Traced, trace
from forde.models import MLP
from forde.step import Step
from forde.step.records import Batch
from steps import compiled, compiled_stack, is_plain, loop, phase_1, stack

BATCH, PART, CLASSES = 8, 2, 3


class Convolutions(nn.Module):
    """What real networks do beside convolving: branches, changes in place, smooth activations, layers used twice."""

    shape = (2, 6, 6)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.plain, self.twice = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.norm, self.without = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False, track_running_stats=False)
        self.up, self.head = nn.ConvTranspose2d(4, 3, 2, 2), nn.Linear(3 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = y + F.relu(self.plain(y), inplace=True)
        y = F.gelu(self.without(self.twice(self.twice(y))))
        return self.head(torch.tanh(self.up(y)).flatten(1))


class Steps(nn.Module):
    """Samples are not the first axis of what its layers see."""

    shape = (5, 4)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        by_step = torch.tanh(self.inner(x.transpose(0, 1)))  # [5, B, 6]
        rows = torch.tanh(self.outer(by_step.flatten(0, 1)))  # [5·B, 4], step after step
        return self.head(self.norm(rows.unflatten(0, (5, len(x))).mean(0)))


class Images(nn.Module):
    """A ResNet of the library in small."""

    shape = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.body = forde.models.wrn16_4(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Perceptron(nn.Module):
    shape = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.body = MLP(6, [8, 8], CLASSES, batch_norm=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


NETWORKS = {"convolutions": Convolutions, "steps": Steps, "wide resnet": Images, "perceptron": Perceptron}
METHODS: dict[str, Callable[[], forde.Method]] = {
    "logit": lambda: forde.method("forde-identity", repulsion_fraction=0.25, repulsion_scale=1.0),
    "log-probability": lambda: forde.method(
        "forde-identity", output="log_prob", repulsion_fraction=0.25, repulsion_scale=1.0
    ),
    "outputs": lambda: forde.method("function-rde", repulsion_fraction=0.25, repulsion_scale=1.0),
    "features": lambda: forde.method("feature-rde", repulsion_fraction=0.25, repulsion_scale=1.0),
}


def batch(network: type[nn.Module], seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, *network.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, torch.arange(BATCH) % CLASSES


def members(network: Callable[[], nn.Module]) -> forde.Ensemble:
    return forde.Ensemble(network, 2).double().train()


def step(engine: Step, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Representations, gradients and buffers of one step, in one piece each."""
    z = engine.update(x, y).z
    assert z is not None and not is_plain(engine)
    gradients = torch.cat([gradient.flatten() for gradient in engine.runner.member_gradients().values()])
    buffers = torch.cat([buffer.flatten().double() for buffer in engine.runner.ensemble.buffers()])
    engine.close()
    return z, gradients, buffers


SMALL = [network for network in NETWORKS if network != "wide resnet"]
CASES = [("logit", "wide resnet"), *((method, network) for method in METHODS for network in SMALL)]


@pytest.mark.parametrize(("method", "network"), CASES)
def test_all_engines_agree(method: str, network: str) -> None:
    make, chosen = NETWORKS[network], METHODS[method]()
    x, y = batch(make)
    expected = step(loop(members(make), chosen), x, y)
    engines: list[Step] = [loop(members(make), chosen, memory="low")]
    engines += [compiled(members(make), chosen, memory=memory) for memory in ("speed", "low")]
    engines += [stack(members(make), chosen), compiled_stack(members(make), chosen)]
    for engine in engines:
        engine.fuse = False
        for found, right in zip(step(engine, x, y), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11, msg=lambda m, e=engine: f"{type(e)}: {m}")


@pytest.mark.parametrize("network", ["convolutions", "wide resnet"])
def test_written_out_for_a_compiler(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulas that a compiler is given, run one by one."""
    make, chosen = NETWORKS[network], METHODS["log-probability"]()
    x, y = batch(make)
    engine = compiled(members(make), chosen, fuse=True)
    monkeypatch.setattr("forde.compile.compiler.fused", lambda graph, **_: graph)
    for found, right in zip(step(engine, x, y), step(loop(members(make), chosen), x, y), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)


class SmallestInputOfReLU(TorchFunctionMode):
    """How near to zero the input of a ReLU came."""

    value = math.inf

    def __torch_function__(
        self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is F.relu:
            self.value = min(self.value, float(args[0].detach().abs().min()))
        return function(*args, **(kwargs or {}))


def batch_away_from_kinks(network: type[nn.Module], margin: float = 4e-6) -> tuple[Tensor, Tensor]:
    """The first batch on which rounding to float32 cannot switch a ReLU: one of them changes a gradient by 1e-2."""
    for seed in range(100):
        x, y = batch(network, seed)
        with SmallestInputOfReLU() as smallest, torch.no_grad():
            for member in members(network).members:
                member(x)
        if margin < smallest.value < math.inf:
            return x, y
    raise AssertionError(f"{network.__name__} has a ReLU near its kink on every batch, or none at all")


@pytest.mark.cuda
@pytest.mark.parametrize("network", ["convolutions", "wide resnet"])
def test_compiled_for_a_gpu(network: str) -> None:
    """With the compiler at work, in strict float32 against float64."""
    make, chosen = NETWORKS[network], METHODS["log-probability"]()
    x, y = (tensor.cuda() for tensor in batch_away_from_kinks(make))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        expected = step(loop(members(make).cuda(), chosen), x, y)
        for memory in ("speed", "low"):
            found = step(compiled(members(make).cuda().float(), chosen, memory=memory), x.float(), y)
            for result, right in zip(found, expected, strict=True):
                assert float((result - right).norm() / right.norm()) < 1e-4


def freeze_statistics(network: Convolutions, x: Tensor) -> None:
    """Make those of this batch the running ones, and use them from now on."""
    layers = (network.norm, network.without)
    activations: list[Tensor] = []
    handles = [layer.register_forward_pre_hook(lambda _, given: activations.append(given[0])) for layer in layers]
    network(x)
    for layer, handle, seen in zip(layers, handles, activations, strict=True):
        handle.remove()
        variance, mean = torch.var_mean(seen.detach(), (0, 2, 3), correction=0)
        layer.register_buffer("running_mean", mean)
        layer.register_buffer("running_var", variance)
        layer.track_running_stats = True
        layer.eval()


def test_a_sample_is_compared_by_its_own_gradient_under_the_statistics_of_the_batch() -> None:
    """One sample at a time, with statistics of the whole batch as numbers."""
    x, y = batch(Convolutions)
    ensemble = members(Convolutions)
    whole = loop(ensemble, forde.method("forde-identity", repulsion_fraction=0.25))
    found = phase_1(whole, x, y).z
    for i, member in enumerate(ensemble.members):
        freeze_statistics(member, x)
        for b in range(PART):
            sample = x[b : b + 1].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(member(sample)[0, y[b]], sample)
            torch.testing.assert_close(found[i, b], (gradient / gradient.norm()).flatten())


def traced(network: type[nn.Module], fraction: float) -> Traced:
    x, y = batch(network)
    engine = compiled(members(network), forde.method("forde-identity", repulsion_fraction=fraction))
    runner, part = engine.runner, int(BATCH * fraction)
    runner = runner.like(policy=replace(runner.policy, traced=True, compiler=True))
    batch_ = Batch(runner.laid_out(x), y, part if fraction < 1 else None)
    z = x[:part].flatten(1).unsqueeze(0)
    return trace(runner, engine.method, 0, batch_, z, metric=None, fused=True, recompute=False)


def convolutions_of(program: Traced) -> Counter[tuple[str, int]]:
    """How often each kind of convolution runs on how many images."""
    assert program.second is not None
    nodes = [*program.first.graph.nodes, *program.second.graph.nodes]
    convolutions = [node for node in nodes if node.op == "call_function" and "convolution" in str(node.target)]
    return Counter((node.target._opname, len(node.args[0].meta["val"])) for node in convolutions)


def test_the_part_costs_three_convolutions_a_layer_and_none_of_them_is_its_forward_pass() -> None:
    layers = sum(isinstance(module, nn.Conv2d) for module in Images().modules())
    part, whole = convolutions_of(traced(Images, 0.25)), convolutions_of(traced(Images, 1.0))
    assert whole["convolution", BATCH] == 2 * layers  # forward pass, and the pull back through the input gradient
    assert part["convolution", BATCH] == layers
    assert part["convolution_backward", BATCH] == layers  # of images and weights in one call
    assert part["convolution", PART] == layers  # the pull back
    assert part["convolution_backward", PART] == 2 * layers  # the input gradient, and the weights' through it


def test_dropout_is_drawn_for_each_pass() -> None:
    """A part with masks of its own has other activations than the whole batch, which then cannot stand in for them."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, CLASSES))

    x, y = torch.randn(1, 6).expand(BATCH, 6), torch.zeros(BATCH, dtype=torch.long)
    method = forde.method("forde-identity", prior=(), repulsion_fraction=0.25)
    for kind in (loop, compiled):
        for memory in ("speed", "low"):
            engine = kind(forde.Ensemble(network, 2).train(), method, memory=memory)
            engine.fuse = False
            seen = {tuple((engine.update(x, y, step=k).z != 0).flatten().tolist()) for k in range(4)}
            assert len(seen) > 1 and not is_plain(engine)


@pytest.mark.parametrize("more_in_the_part", [False, True])
def test_networks_that_leave_out_layers_are_refused(more_in_the_part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.head = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.first(x)) if random.random() < 0.5 else x)

    draws = iter([0.9, 0.1] if more_in_the_part else [0.1, 0.9])
    monkeypatch.setattr(random, "random", lambda: next(draws))
    engine = loop(forde.Ensemble(Skipping, 2).train(), METHODS["logit"]())
    with pytest.raises(forde.FordeError, match="other BatchNorm layers than the whole batch"):
        engine.update(torch.randn(BATCH, 6), torch.arange(BATCH) % CLASSES)


def test_one_value_per_channel_is_refused_as_by_torch() -> None:
    engine = loop(forde.Ensemble(Perceptron, 2).train(), METHODS["logit"]())
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        engine.update(torch.randn(1, 6), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("engine", [loop, stack])
@pytest.mark.parametrize(
    ("fraction", "batch", "part"), [(0.25, 10, 3), (0.5, 7, 4), (0.01, 8, 1), (0.99, 8, 8), (0.5, 8, 4), (1.0, 7, 7)]
)
def test_a_share_that_is_no_whole_number_is_rounded_up(
    engine: Callable[..., Step], fraction: float, batch: int, part: int
) -> None:
    ensemble = forde.Ensemble(lambda: MLP(4, [5], CLASSES), 2).train()
    runner = engine(ensemble, forde.method("forde-identity", repulsion_fraction=fraction))
    report = runner.update(torch.randn(batch, 4), torch.arange(batch) % CLASSES)
    assert report.z.shape == (2, part, 4)


def test_perceptrons_need_no_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part's pass runs on whole stacks, as the batch's does, and comes to what `torch.vmap` comes to."""
    torch.manual_seed(0)
    batch = Batch(torch.randn(BATCH, 4), torch.randint(CLASSES, (BATCH,)), PART)
    given = batch.one.clone()

    def network() -> nn.Module:
        return nn.Sequential(nn.ReLU(inplace=True), MLP(4, [5], CLASSES))

    step = stack(forde.Ensemble(network, 3, seed=0), forde.method("forde-identity"))

    def parts() -> tuple[Tensor, Tensor, Tensor]:
        whole, part, inputs, _ = step.runner.run_apart(0, batch, twice=True)
        (gradient,) = torch.autograd.grad(part.output.square().sum(), inputs)
        return whole.output, part.output, gradient

    with monkeypatch.context() as patch:
        patch.setattr(step.runner, "_at_once", False)
        expected = parts()
    monkeypatch.setattr(torch, "vmap", None)  # to be called by nobody
    for found, wanted in zip(parts(), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert torch.equal(batch.one, given)
