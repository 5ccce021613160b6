"""Predictions in 16 bits: networks rewritten for speed compute the same, and the ensemble stays as it is."""

from __future__ import annotations

import logging
import operator
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import forde
from forde.inference import folded, fused, running
from forde.inference.fused import FusedConvolution, Operators
from forde.inference.repeatable import watched

MODELS = [forde.models.resnet18, forde.models.wrn16_4, forde.models.preact_resnet18]


def convolution_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    """What cuDNN's operation of this name computes; refuses what it refuses."""
    assert x.dtype == weight.dtype
    return F.conv2d(x, weight, bias, *geometry).relu()


def convolution_add_relu(x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Any, *geometry: Any) -> Tensor:
    y = F.conv2d(x, weight, bias, *geometry)
    assert z.shape == y.shape and z.dtype == y.dtype == x.dtype
    return (y + alpha * z).relu()


STAND_INS = Operators(convolution_relu, convolution_add_relu)


def shaken(network: nn.Module) -> nn.Module:
    """With running statistics as after some training."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return network


def kinds(network: fx.GraphModule) -> tuple[int, int]:
    """How many fused convolutions there are without and with a sum."""
    layers = dict(network.named_modules())
    nodes = [n for n in network.graph.nodes if isinstance(layers.get(str(n.target)), FusedConvolution)]
    return sum(len(node.args) == 1 for node in nodes), sum(len(node.args) == 2 for node in nodes)


class TestFused:
    @pytest.mark.parametrize(("make", "expected"), [*zip(MODELS, [(9, 8), (7, 0), (8, 0)], strict=True)])
    def test_library_models(self, make: Callable[[int], nn.Module], expected: tuple[int, int]) -> None:
        network = shaken(make(10)).eval()
        plain = folded(network)
        assert isinstance(plain, fx.GraphModule)
        fast = fused(plain, STAND_INS)
        assert kinds(fast) == expected and kinds(plain) == (0, 0)
        x = torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), plain(x))
            torch.testing.assert_close(fast(x), network(x), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("case", [*range(22)])
    def test_small_graphs(self, case: int) -> None:
        class Parts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1, bias=False)
                self.strided, self.point = nn.Conv2d(4, 4, 3, 2, 1, groups=2), nn.Conv2d(4, 4, 1, 2)
                self.mirrored = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
                self.same = nn.Conv2d(4, 4, 3, padding="same")
                self.relu, self.relu_ = nn.ReLU(), nn.ReLU(inplace=True)

        def modified_input(p: Any, x: Any) -> Any:
            x = x * 1
            y = p.a(x)
            return (y + p.relu_(x)).relu()

        def modified_after(p: Any, x: Any) -> Any:
            x = x * 1
            y = p.a(x)
            shortcut = F.relu(x, inplace=True)
            return F.relu(y) + shortcut

        def modified_shortcut(p: Any, x: Any) -> Any:
            z = x * 1
            kept = z.view(-1, 4, 8, 8)
            z += p.a(x)
            return F.relu(z) + kept

        def used_twice(p: Any, x: Any) -> Any:
            y = p.a(x)
            return F.relu(y) + y

        def sum_used_twice(p: Any, x: Any) -> Any:
            y = p.a(x) + x
            return F.relu(y) + y

        def in_place_sum(p: Any, x: Any) -> Any:
            y = p.a(x)
            y += x
            return p.relu_(y)

        cases: list[tuple[Callable[[Any, Any], Any], tuple[int, int]]] = [
            (lambda p, x: F.relu(p.a(x)), (1, 0)),
            (lambda p, x: F.relu(p.b(x), inplace=True), (1, 0)),
            (lambda p, x: p.relu_(p.relu(p.strided(x))), (1, 0)),
            (lambda p, x: torch.relu(p.a(x)).relu(), (1, 0)),
            (lambda p, x: p.a(x).relu(), (1, 0)),
            (lambda p, x: F.relu(p.a(p.b(x)) + x), (0, 1)),
            (lambda p, x: F.relu(x + p.a(x)), (0, 1)),
            (lambda p, x: F.relu(torch.add(p.a(x), p.b(x), alpha=1)), (0, 1)),
            (lambda p, x: F.relu(torch.add(p.a(x), x, alpha=2)), (0, 0)),
            (lambda p, x: F.relu(p.strided(x) + p.point(x)), (0, 1)),
            (lambda p, x: F.relu(p.strided(p.a(x).relu()) + p.point(x)), (1, 1)),
            (lambda p, x: F.relu(p.a(x) + x.mean((2, 3), keepdim=True)), (0, 1)),  # broadcast when it runs
            (lambda p, x: F.relu(p.a(x) + x.double()), (0, 1)),
            (lambda p, x: F.relu(p.a(x) + 1.0), (0, 0)),
            (lambda p, x: F.relu(p.mirrored(x)) + F.relu(p.same(x)), (0, 0)),
            (lambda p, x: F.relu(p.a(x)) + p.a(p.b(x)), (1, 0)),  # one use of two
            (in_place_sum, (0, 1)),
            (used_twice, (0, 0)),
            (sum_used_twice, (0, 0)),
            (modified_input, (0, 0)),
            (modified_after, (1, 0)),
            (modified_shortcut, (0, 0)),
        ]
        function, expected = cases[case]
        Parts.forward = function  # type: ignore[assignment]
        torch.manual_seed(0)
        network = Parts()
        plain = folded(network)
        assert isinstance(plain, fx.GraphModule)
        fast = fused(plain, STAND_INS)
        assert kinds(fast) == expected
        x = torch.randn(3, 4, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(fast(x.clone()), network(x.clone()))

    def test_a_convolution_plus_itself_is_left_alone(self) -> None:
        network = fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()))
        conv, relu = (node for node in network.graph.nodes if node.op == "call_module")
        with network.graph.inserting_before(relu):
            relu.args = (network.graph.call_function(operator.add, (conv, conv)),)
        assert kinds(fused(network, STAND_INS)) == (0, 0)

    def test_what_cudnn_does_not_support_runs_one_by_one(self, caplog: pytest.LogCaptureFixture) -> None:
        def refuse(*_: Any) -> Tensor:
            raise RuntimeError("GET was unable to find an engine\nand a long story")

        caplog.set_level(logging.INFO, "forde")
        network = folded(forde.models.resnet18(10))
        assert isinstance(network, fx.GraphModule)
        x = torch.randn(1, 3, 8, 8)
        fast = fused(network, Operators(refuse, refuse))
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(fast(x), network(x))
        assert caplog.text.count("unable to find an engine") == 1 and "long story" not in caplog.text

    def test_memory_that_is_not_enough_is_not_hidden(self) -> None:
        def refuse(*_: Any) -> Tensor:
            raise torch.OutOfMemoryError("no memory")

        network = fused(fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())), Operators(refuse, refuse))
        with pytest.raises(torch.OutOfMemoryError):
            network(torch.zeros(1, 1, 2, 2))


class TestFolded:
    def test_the_network_is_untouched(self) -> None:
        network = shaken(forde.models.wrn16_4(10)).train()
        before = {name: (t, t.clone(), t.stride()) for name, t in network.state_dict(keep_vars=True).items()}
        folded(network)(torch.zeros(1, 3, 8, 8))
        assert all(module.training for module in network.modules())
        for name, tensor in network.state_dict(keep_vars=True).items():
            same, value, stride = before[name]
            assert tensor is same and torch.equal(tensor, value) and tensor.stride() == stride

    @pytest.mark.parametrize("eps", [1e-5, 0.5])
    @pytest.mark.parametrize(("bias", "affine"), [(True, True), (False, True), (True, False)])
    def test_every_number_of_batch_norm_is_folded_in(self, eps: float, bias: bool, affine: bool) -> None:
        """(conv(x) − mean)/√(var + eps) · weight + bias, all of them unlike what a new layer has."""
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(2, 3, 3, bias=bias), nn.BatchNorm2d(3, eps=eps, affine=affine)).double()
        shaken(network)
        if affine:
            nn.init.normal_(network[1].weight)
            nn.init.normal_(network[1].bias)
        x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
        fast = folded(network.eval())
        assert not any(isinstance(layer, nn.BatchNorm2d) for layer in fast.modules())
        torch.testing.assert_close(fast(x), network(x))

    def test_hooks_random_constants_and_subclasses_are_respected(self) -> None:
        class Noisy(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + torch.rand(1)

        class Doubled(nn.Conv2d):
            def forward(self, x: Tensor) -> Tensor:
                return 2 * super().forward(x)

        noisy = Noisy()
        assert folded(noisy) is noisy
        hooked = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
        hooked.register_forward_hook(lambda module, inputs, output: -output)
        assert folded(hooked) is hooked
        own = shaken(nn.Sequential(Doubled(1, 1, 1), nn.BatchNorm2d(1))).eval()
        x = torch.randn(2, 1, 3, 3)
        torch.testing.assert_close(folded(own)(x), own(x))
        parametrised = nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 1, 1)), nn.BatchNorm2d(1)
        ).eval()  # fmt: skip
        torch.testing.assert_close(folded(parametrised)(x), parametrised(x))


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(512, 4)
    )  # fmt: skip


def ensemble_of(make: Callable[[], nn.Module], n_members: int = 3) -> forde.Ensemble:
    ensemble = forde.Ensemble(make, n_members)
    for member in ensemble.members:
        shaken(member)
    return ensemble


class Branching(nn.Module):
    """Neither torch.fx nor a CUDA graph can follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.flatten(1))
        return y if float(y.sum()) > 0 else y * 1.0


class MCDropout(nn.Module):
    """Draws in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(F.dropout(x.flatten(1), 0.5, training=True))
        return y


class TestPredict:
    def test_float32_is_the_members_bit_for_bit(self) -> None:
        ensemble = ensemble_of(small_network)
        x = torch.randn(20, 3, 8, 8)
        ensemble.eval()
        with torch.no_grad():
            expected = torch.cat([ensemble(part) for part in x.split(7)], dim=1)
        assert torch.equal(ensemble.predict(x, batch_size=7).member_logits, expected)
        assert torch.equal(ensemble.predict(x, batch_size=100).member_logits, ensemble(x))

    @pytest.mark.parametrize("make", [small_network, Branching, lambda: forde.models.wrn16_4(3)])
    @pytest.mark.parametrize("batch_size", [7, 20, 512])
    def test_bf16_is_close(self, make: Callable[[], nn.Module], batch_size: int) -> None:
        ensemble = ensemble_of(make)
        x = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        exact = ensemble.predict(x).member_logits
        found = ensemble.predict(x, batch_size=batch_size, precision="bf16").member_logits
        assert found.dtype == torch.float32 and found.shape == exact.shape
        assert not torch.equal(found, exact)
        assert float((found - exact).abs().max()) < 0.03 * float(exact.abs().max())

    @pytest.mark.parametrize("precision", ["float32", "bf16"])
    def test_the_ensemble_is_untouched(self, precision: Any) -> None:
        ensemble = ensemble_of(small_network).train()
        ensemble.members[1].eval()
        modes = [module.training for module in ensemble.modules()]
        before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
        prediction = ensemble.predict(torch.randn(5, 3, 8, 8), precision=precision)
        with pytest.raises(forde.FordeError, match=r"failed on a batch of shape \[5, 1, 8, 8\]"):
            ensemble.predict(torch.randn(5, 1, 8, 8), precision=precision)
        assert [module.training for module in ensemble.modules()] == modes
        assert all(torch.equal(tensor, before[name]) for name, tensor in ensemble.state_dict().items())
        assert not prediction.member_logits.is_inference() and not torch.is_autocast_enabled("cpu")
        ensemble(torch.randn(2, 3, 8, 8)).sum().backward()

    def test_double_tokens_regression_and_sixteen_bit_members(self) -> None:
        x = torch.randn(6, 4)
        double = forde.Ensemble(lambda: forde.models.MLP(4, [8], 3), 2).double()
        assert double.predict(x, precision="bf16").member_logits.dtype == torch.float64
        tokens = forde.Ensemble(
            lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3)), 2
        )  # fmt: skip
        words = torch.randint(5, (6, 3))
        torch.testing.assert_close(
            tokens.predict(words, precision="bf16").probs, tokens.predict(words).probs, rtol=0.02, atol=0.01
        )
        line = forde.Ensemble(lambda: nn.Linear(4, 1), 2, likelihood="regression")
        assert line.predict(x, precision="bf16").mean.dtype == torch.float32
        assert line.to(torch.bfloat16).predict(x).mean.dtype == torch.float32

    def test_not_finite_weights_stay_visible(self) -> None:
        ensemble = ensemble_of(small_network)
        ensemble.members[1][0].weight.data[0] = torch.nan  # type: ignore[index, union-attr, operator]
        logits = ensemble.predict(torch.randn(5, 3, 8, 8), precision="bf16").member_logits
        assert bool(logits[1].isnan().all()) and bool(logits[0].isfinite().all())

    def test_unknown_precision(self) -> None:
        with pytest.raises(forde.FordeError, match="precision is 'fp16', but 'float32' or 'bf16' was expected"):
            ensemble_of(small_network).predict(torch.zeros(1, 3, 8, 8), precision="fp16")  # type: ignore[arg-type]

    def test_outputs_are_gathered_whatever_their_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ensemble = ensemble_of(small_network)
        x = torch.randn(9, 3, 8, 8)
        expected = ensemble.predict(x, batch_size=2).member_logits
        monkeypatch.setattr("forde.ensemble.KEPT_ON_DEVICE", 0)
        assert torch.equal(ensemble.predict(x, batch_size=2).member_logits, expected)

    def test_modes_with_consequences_are_entered_and_left(self) -> None:
        class Merging(nn.Linear):
            """As low-rank adapters do: other weights in evaluation mode."""

            def train(self, mode: bool = True) -> Merging:
                with torch.no_grad():
                    self.weight.mul_(1 if mode == self.training else 0.5 if mode else 2)
                return super().train(mode)

        ensemble = forde.Ensemble(lambda: Merging(4, 3), 2)
        before = ensemble.members[0].weight.clone()  # type: ignore[operator, union-attr]
        ensemble.predict(torch.randn(2, 4), precision="bf16")
        assert torch.equal(ensemble.members[0].weight, before)  # type: ignore[arg-type]


class Operations(TorchDispatchMode):
    """Counts what is computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs or {})


def test_weights_are_cast_once_and_batch_norm_is_folded() -> None:
    ensemble = ensemble_of(lambda: forde.models.resnet18(10), 1)
    with running(list(ensemble.members), torch.bfloat16) as outputs, Operations() as seen:
        outputs(torch.randn(2, 3, 8, 8))
    assert seen.count["convolution"] == 20 and seen.count["relu"] == 17
    assert seen.count["_to_copy"] <= 2, "the input and the outputs"
    assert not any("batch_norm" in name for name in seen.count)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x @ x.T, None),
        (lambda x: x * 0.5 + torch.zeros(3), None),
        (lambda x: x if bool(x.sum() > 0) else -x, "reads values"),
        (lambda x: x * len(x.tolist()), None),
        (lambda x: x[x > 0], "shape depends on values"),
        (lambda x: F.dropout(x, 0.5), "random"),
        (lambda x: x + torch.rand(3), "random"),
        (lambda x: x + torch.rand(3, generator=torch.Generator()), "random"),
        (lambda x: x + random.random(), "random"),
        (lambda x: x + np.random.rand(), "random"),
        (lambda x: x.to("meta"), "between devices"),
        (lambda x: x.bfloat16(), None),
    ],
)
def test_what_a_graph_can_repeat(function: Callable[[Tensor], Tensor], reason: str | None) -> None:
    _, found = watched(lambda: function(torch.ones(3, 3)))
    assert found is None if reason is None else reason in str(found)


@pytest.mark.cuda
class TestOnGPU:
    @pytest.fixture(autouse=True)
    def no_tf32(self):
        with torch.backends.cudnn.flags(enabled=True, deterministic=False, benchmark=False, allow_tf32=False):
            yield

    @pytest.mark.parametrize("make", [*MODELS, lambda n: small_network()])
    @pytest.mark.parametrize("precision", ["float32", "bf16"])
    def test_agrees_with_one_eager_pass(self, make: Any, precision: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Full batches before, in and after the capture, and a partial one."""
        caplog.set_level(logging.INFO, "forde")
        size = 8 if make not in MODELS else 32
        ensemble = ensemble_of(lambda: make(10), 5).cuda().eval()
        x = torch.randn(16 * 5 + 3, 3, size, size, device="cuda")
        with torch.no_grad():
            expected = ensemble(x).cpu()
        found = ensemble.predict(x, batch_size=16, precision=precision).member_logits
        tolerance = 0.03 if precision == "bf16" else 1e-3
        assert float((found - expected).abs().max()) < tolerance * float(expected.abs().max())
        assert "CUDA graph" not in caplog.text and "stay apart" not in caplog.text
        assert not torch.backends.cudnn.benchmark

    def test_fused_operations_are_used(self) -> None:
        ensemble = ensemble_of(lambda: forde.models.resnet18(10), 1).cuda()
        x = torch.randn(32, 3, 32, 32, device="cuda")
        with Operations() as seen:
            ensemble.predict(x, precision="bf16")
        assert seen.count["cudnn_convolution_relu"] == 9 and seen.count["cudnn_convolution_add_relu"] == 8
        assert seen.count["convolution"] == 3, "the shortcuts' projections"
        assert not seen.count["relu"] and not seen.count["cudnn_batch_norm"] and not seen.count["native_batch_norm"]

    @pytest.mark.parametrize("make", MODELS)
    def test_nan_left_in_memory_does_not_matter(self, make: Any) -> None:
        """cuDNN's operation is given its own output, which nobody filled, as a summand times 0."""
        ensemble = ensemble_of(lambda: make(10), 2).cuda()
        x = torch.randn(64 * 4, 3, 32, 32, device="cuda")
        expected = ensemble.predict(x, batch_size=64).member_logits
        for value in (torch.nan, torch.inf):
            torch.cuda.empty_cache()
            waste = [torch.full((2**26,), value, device="cuda", dtype=torch.bfloat16) for _ in range(16)]
            waste += [torch.full((2**18,), value, device="cuda", dtype=torch.bfloat16) for _ in range(64)]
            del waste
            found = ensemble.predict(x, batch_size=64, precision="bf16").member_logits
            assert float((found - expected).abs().max()) < 0.03 * float(expected.abs().max())

    def test_nan_of_inputs_and_weights_stays_visible(self) -> None:
        ensemble = ensemble_of(lambda: forde.models.resnet18(10), 2).cuda()
        x = torch.randn(64, 3, 32, 32, device="cuda")
        x[[5, 40], 0, 0, 0] = torch.nan
        bad = ensemble.predict(x, batch_size=16, precision="bf16").member_logits.isnan().any(-1)
        assert bad.nonzero().tolist() == [[0, 5], [0, 40], [1, 5], [1, 40]]
        ensemble.members[1].stem.weight.data[0] = torch.nan  # type: ignore[union-attr, operator]
        logits = ensemble.predict(torch.randn(64, 3, 32, 32), batch_size=16, precision="bf16").member_logits
        assert bool(logits[1].isnan().all()) and bool(logits[0].isfinite().all())

    @pytest.mark.parametrize("precision", ["float32", "bf16"])
    def test_dropout_is_drawn_anew_in_every_batch(self, precision: Any) -> None:
        ensemble = forde.Ensemble(MCDropout, 3).cuda()
        x = torch.randn(1, 3, 8, 8, device="cuda").expand(8 * 6, 3, 8, 8)
        logits = ensemble.predict(x, batch_size=8, precision=precision).member_logits
        assert len({tuple(row.tolist()) for row in logits[0]}) == 8 * 6

    @pytest.mark.parametrize("precision", ["float32", "bf16"])
    def test_branches_run_eagerly(self, precision: Any, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "forde")
        ensemble = forde.Ensemble(Branching, 5).cuda().eval()
        x = torch.randn(50, 3, 8, 8, device="cuda")
        with torch.no_grad():
            expected = ensemble(x).cpu()
        found = ensemble.predict(x, batch_size=8, precision=precision).member_logits
        torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)
        assert caplog.text.count("without a CUDA graph") == 1
        caplog.clear()
        other = ensemble_of(small_network).cuda()  # and the GPU is none the worse
        assert bool(other.predict(x, batch_size=8, precision=precision).probs.isfinite().all())
        assert "without a CUDA graph" not in caplog.text

    @pytest.mark.parametrize(
        "synchronises", [lambda x: torch.tensor(1.0, device=x.device), lambda x: x.cpu().to(x.device)]
    )
    def test_copies_from_the_host_run_eagerly(self, synchronises: Any, caplog: pytest.LogCaptureFixture) -> None:
        class Copying(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 0 * synchronises(x).sum()

        caplog.set_level(logging.INFO, "forde")
        ensemble = forde.Ensemble(lambda: Copying(4, 3), 5).cuda()
        x = torch.randn(50, 4, device="cuda")
        with torch.no_grad():
            expected = ensemble(x).cpu()
        torch.testing.assert_close(ensemble.predict(x, batch_size=8).member_logits, expected)
        assert "copies" in caplog.text

    def test_a_capture_that_fails_leaves_everything_usable(self) -> None:
        """In a process of its own, since torch remembers failed captures."""
        code = """
import logging, torch, forde
class Waiting(torch.nn.Linear):
    def forward(self, x):  # waits where nothing that torch computes shows it
        y = super().forward(x)
        torch.cuda.current_stream().synchronize()
        return y
logging.basicConfig(level="INFO")
x, stream = torch.randn(50, 4, device="cuda"), torch.cuda.current_stream()
for make in (Waiting, torch.nn.Linear):
    ensemble = forde.Ensemble(lambda: make(4, 3), 5).cuda()
    with torch.no_grad():
        expected = ensemble(x).cpu()
    for _ in range(2):
        torch.testing.assert_close(ensemble.predict(x, batch_size=8).member_logits, expected)
    assert torch.cuda.current_stream() == stream
    torch.cuda.empty_cache()
"""
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("without a CUDA graph") == 2

    def test_hooks_see_every_batch(self) -> None:
        ensemble = ensemble_of(small_network).cuda()
        seen: list[int] = []
        ensemble.members[0].register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
        ensemble.predict(torch.randn(50, 3, 8, 8), batch_size=8, precision="bf16")
        assert seen == [8] * 6 + [2]

    def test_memory_is_returned_and_the_ensemble_untouched(self) -> None:
        ensemble = ensemble_of(lambda: forde.models.wrn16_4(10), 4).cuda().train()
        x = torch.randn(256 * 4, 3, 32, 32, device="cuda")
        before = {name: (t.data_ptr(), t.clone()) for name, t in ensemble.state_dict().items()}

        def held() -> tuple[int, int]:
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

        for precision in ("float32", "bf16"):
            ensemble.predict(x, batch_size=256, precision=precision)  # cuBLAS and cuDNN take what they keep
            torch.cuda.empty_cache()
            first = held()
            for _ in range(3):
                ensemble.predict(x, batch_size=256, precision=precision)
            after = held()
            assert after[0] == first[0]
            assert after[1] <= first[1] + 2**26
        for name, tensor in ensemble.state_dict().items():
            assert tensor.data_ptr() == before[name][0] and torch.equal(tensor, before[name][1])
        assert all(module.training for module in ensemble.modules())

    def test_deterministic_algorithms_are_respected(self) -> None:
        ensemble = ensemble_of(lambda: forde.models.resnet18(10), 1).cuda()
        x = torch.randn(8, 3, 32, 32, device="cuda")
        torch.backends.cudnn.deterministic = True
        with Operations() as seen:
            ensemble.predict(x, precision="bf16")
        assert seen.count["relu"] == 17 and not seen.count["cudnn_convolution_relu"]

    def test_float16_runs_folded(self) -> None:
        ensemble = ensemble_of(lambda: forde.models.resnet18(10), 2).cuda().eval()
        x = torch.randn(40, 3, 32, 32, device="cuda")
        with torch.no_grad():
            expected = ensemble(x)
        with running(list(ensemble.members), torch.float16) as outputs:
            found = torch.cat([outputs(part) for part in x.split(10)], dim=1)
        assert float((found - expected).abs().max()) < 0.01 * float(expected.abs().max())
