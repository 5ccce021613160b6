"""The cheap second derivative of convolution against torch's own, and against finite differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from policies import TorchsOwn, cheap
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import forde
from forde.double_backward import Policy
from forde.step import MemberLoop, PlainStep

PLAIN = [F.conv1d, F.conv2d, F.conv3d]
TRANSPOSED = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]
GEOMETRIES = [
    {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    for stride, padding, dilation, groups in itertools.product((1, 2), (0, 1), (1, 2), (1, 2))
]


def tensors(function: Callable[..., Tensor], groups: int, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    dims = (PLAIN + TRANSPOSED).index(function) % 3 + 1
    generator = torch.Generator().manual_seed(0)
    size = 6 if dims < 3 else 5
    x = torch.randn(2, 4, *[size] * dims, generator=generator, dtype=torch.float64)
    shape = (4, 4 // groups)  # (outputs, inputs per group), and the other way round where transposed
    w = torch.randn(*shape, *[2] * dims, generator=generator, dtype=torch.float64)
    outputs = shape[1] * groups if function in TRANSPOSED else shape[0]
    b = torch.randn(outputs, generator=generator, dtype=torch.float64) if bias else None
    return x, w, b


def derivatives(function: Callable[..., Tensor], options: dict[str, int]) -> list[Tensor]:
    """Value, gradients, and gradients of a function of the input gradient."""
    x, w, b = (None if t is None else t.requires_grad_() for t in tensors(function, options["groups"]))
    y = function(x, w, b, **options).tanh()
    (gx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first = torch.autograd.grad(y.square().sum(), (x, w, b), retain_graph=True)
    second = torch.autograd.grad(gx.sin().sum(), (x, w, b))
    return [y.detach(), gx.detach(), *first, *second]


@pytest.mark.parametrize("for_compiler", [False, True])
@pytest.mark.parametrize("options", GEOMETRIES, ids=str)
@pytest.mark.parametrize("function", PLAIN + TRANSPOSED, ids=lambda f: f.__name__)
def test_all_derivatives_equal_torch(
    function: Callable[..., Tensor], options: dict[str, int], for_compiler: bool
) -> None:
    expected = derivatives(function, options)
    with cheap(for_compiler=for_compiler):
        found = derivatives(function, options)
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("for_compiler", [False, True])
@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose1d], ids=lambda f: f.__name__)
def test_finite_differences(function: Callable[..., Tensor], for_compiler: bool) -> None:
    x, w, b = tensors(function, 2)
    x, w = x[:1, :, :4].requires_grad_(), w.requires_grad_()

    def call(x: Tensor, w: Tensor) -> Tensor:
        with cheap(for_compiler=for_compiler):
            return function(x, w, b, stride=2, padding=1, groups=2)

    assert torch.autograd.gradcheck(call, (x, w))
    assert torch.autograd.gradgradcheck(call, (x, w))


def test_other_calls_go_through() -> None:
    """String padding and single samples are left to torch."""
    x, w, _ = tensors(F.conv2d, 1)
    with cheap():
        assert torch.equal(F.conv2d(x, w, padding="valid"), torch.conv2d(x, w))
        odd = torch.randn(4, 4, 3, 3, dtype=torch.float64)
        assert F.conv2d(x, odd, padding="same").shape == x.shape
        assert F.conv2d(x[0], w).dim() == 3
        assert F.conv_transpose2d(x[0], w).dim() == 3
        assert torch.equal(F.relu(x), x.clamp_min(0))


class Computed(TorchDispatchMode):
    """Gradients of convolutions in the order in which they are computed; those of inputs as transposed ones, too."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and args[6]:
            self.gradients.append("input")
        if func is torch.ops.aten.convolution_backward.default:
            self.gradients += [name for name, mask in zip(("input", "weight"), args[-1], strict=False) if mask]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("for_compiler", [False, True])
def test_input_gradients_do_not_compute_weight_gradients(for_compiler: bool) -> None:
    x, w, _ = tensors(F.conv2d, 1)
    with cheap(for_compiler=for_compiler):
        y = F.conv2d(x.requires_grad_(), w.requires_grad_())
    with Computed() as computed:
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert computed.gradients == ["input"]
    gradient.sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize("for_compiler", [False, True])
def test_weight_gradients_do_not_compute_that_of_the_batch(for_compiler: bool) -> None:
    """A training step never needs the gradient of the loss with respect to the images."""
    x, w, _ = tensors(F.conv2d, 1)
    second = torch.randn(2, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    with cheap(for_compiler=for_compiler):
        y = F.conv2d(F.conv2d(x.requires_grad_(), w.requires_grad_()), second)
    with Computed() as computed:
        torch.autograd.backward(y.sum(), inputs=[w, second])
    assert sorted(computed.gradients) == ["input", "weight", "weight"] and x.grad is None


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("function", [F.conv2d, F.conv3d], ids=lambda f: f.__name__)
def test_channels_stay_last_through_both_derivatives(function: Callable[..., Tensor], channels: int) -> None:
    """Also where a cotangent comes with channels first, as that of a flattened input gradient does."""
    dims = PLAIN.index(function) + 1
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, channels, *[6] * dims, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, channels, *[3] * dims, generator=generator, dtype=torch.float64)
    found = []
    for own in (True, False):
        x, w = images.contiguous(memory_format=last).requires_grad_(), weights.clone().requires_grad_()
        with cheap() if own else torch.enable_grad():
            y = function(x, w, stride=2, padding=1).relu()
        (gx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        second = torch.autograd.grad(gx.flatten(1).sin().sum(), (x, w))
        if own and channels > 1 and dims == 2:  # of volumes torch itself changes the order
            assert y.is_contiguous(memory_format=last) and gx.is_contiguous(memory_format=last)
        found.append([y, gx, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["forde-identity", "forde-pca", "lit"])
@pytest.mark.parametrize("make", [forde.models.resnet18, forde.models.preact_resnet18, forde.models.wrn16_4])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_residual_networks_get_the_same_gradients(order: torch.memory_format, make, method: str) -> None:
    x, y = torch.randn(3, 3, 8, 8, dtype=torch.float64).contiguous(memory_format=order), torch.tensor([0, 1, 2])
    found = []
    for own in (True, False):
        ensemble = forde.Ensemble(lambda: make(3), 2).double().train()
        data = forde.priors.TrainingData(lambda: iter([x]), 3)
        prepared = forde.method(method).prepare(ensemble.members[0], data)
        runner = MemberLoop(ensemble, prepared, policy=(Policy if own else TorchsOwn)("cpu"))
        PlainStep(runner, prepared).update(x, y)
        buffers = [b.double() for b in ensemble.buffers()]
        found.append([*(p.grad for p in runner.parameters()), *buffers])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


def test_autocast() -> None:
    layer = nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), cheap():
        y = layer(x)
    assert y.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32 and bool(layer.weight.grad.isfinite().all())
