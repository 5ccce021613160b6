"""BatchNorm and ReLU with cheap second derivatives: the same values and derivatives as torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from policies import cheap
from torch import Tensor, nn
from torch.nn import functional as F

from forde.double_backward import batch_norm, batch_norm_for_compiler
from forde.double_backward.activations import relu
from forde.double_backward.batch_norm import BatchNorm
from forde.double_backward.batch_norm_for_compiler import relu_for_compiler

SHAPES = [(5, 3), (4, 3, 6), (4, 3, 2, 3), (2, 3, 2, 2, 2)]


class Way(NamedTuple):
    """A way to have cheap second derivatives."""

    in_training: Callable[..., tuple[Tensor, Tensor, Tensor]]
    relu: Callable[..., Tensor]


KERNELS = Way(batch_norm.in_training, relu)
FORMULAS = Way(batch_norm_for_compiler.in_training, relu_for_compiler)
both_ways = pytest.mark.parametrize("by", [KERNELS, FORMULAS], ids=["kernels", "formulas"])


def tensors(shape: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = 2 + torch.randn(shape, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in (y, weight, bias)]


@both_ways
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_statistics_and_derivatives(shape: tuple[int, ...], by: Way) -> None:
    y, weight, bias = tensors(shape)
    mean, var = torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    found = by.in_training(BatchNorm(y, mean[0], var[0], weight, bias, True, 0.3, 1e-3))[0]
    expected = F.batch_norm(y, mean[1], var[1], weight, bias, True, 0.3, 1e-3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mean[0], mean[1])
    torch.testing.assert_close(var[0], var[1])

    def normalised(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return by.in_training(BatchNorm(y, None, None, weight, bias))[0]

    assert torch.autograd.gradcheck(normalised, (y, weight, bias))
    assert torch.autograd.gradgradcheck(normalised, (y, weight, bias))
    assert torch.autograd.gradgradcheck(lambda y: by.in_training(BatchNorm(y, None, None))[0], (y,))


@both_ways
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_are_functions_of_the_batch(shape: tuple[int, ...], by: Way) -> None:
    y, weight, bias = tensors(shape)

    def told(y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        out, mean, inverse = by.in_training(BatchNorm(y, None, None, weight, bias, eps=1e-3), differentiable=True)
        return out, mean, inverse, out.sum() * inverse

    _, mean, inverse, _ = told(y, weight, bias)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    torch.testing.assert_close(mean, y.mean(axes))
    torch.testing.assert_close(inverse, (y.var(axes, correction=0) + 1e-3).rsqrt())
    assert torch.autograd.gradcheck(told, (y, weight, bias))


@both_ways
def test_half_precision_sums_in_float32(by: Way) -> None:
    y = 100 + torch.randn(64, 3, 8, 8).bfloat16()
    found = by.in_training(BatchNorm(y, None, None, torch.ones(3), torch.zeros(3)))[0]
    assert found.dtype == torch.bfloat16
    expected = F.batch_norm(y.double(), None, None, training=True)
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)


@both_ways
@pytest.mark.parametrize("cotangents_last", [False, True])
@pytest.mark.parametrize("images_last", [False, True])
def test_derivatives_in_any_order_of_memory(images_last: bool, cotangents_last: bool, by: Way) -> None:
    generator = torch.Generator().manual_seed(0)
    images, g, v = torch.randn(3, 4, 3, 5, 6, generator=generator, dtype=torch.float64)

    def ordered(tensor: Tensor, last: bool) -> Tensor:
        return tensor.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

    found = []
    for own in (True, False):
        _, weight, bias = tensors((1, 3))
        y, g_ = ordered(images, images_last).requires_grad_(), ordered(g, cotangents_last).requires_grad_()
        if own:
            out = by.relu(by.in_training(BatchNorm(y, None, None, weight, bias))[0])
        else:
            out = F.batch_norm(y, None, None, weight, bias, training=True).relu()
        first = torch.autograd.grad(out, (y, weight, bias), g_, create_graph=True)
        second = torch.autograd.grad(
            (first[0] * ordered(v, cotangents_last)).sum() + first[1].sin().sum() + first[2].cos().sum(),
            (y, g_, weight),
        )
        assert first[0].is_contiguous(memory_format=torch.channels_last) == images_last or not own or by is FORMULAS
        found.append([out, *first, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("for_compiler", [False, True])
def test_second_derivative_in_half_precision_is_as_near_as_torchs(for_compiler: bool) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    x = torch.randn(8, 3, 8, 8)

    def second_derivative(precision: torch.dtype, *, own: bool) -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        autocast = torch.autocast("cpu", precision, enabled=precision == torch.bfloat16)
        with autocast, cheap(for_compiler=for_compiler) if own else torch.enable_grad():
            out = network(inputs)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), inputs, create_graph=True)
        wanted = [network[0].weight, network[1].weight]
        return list(torch.autograd.grad(gradient.square().sum(), wanted))

    exact = second_derivative(torch.float32, own=False)
    torchs, ours = (second_derivative(torch.bfloat16, own=own) for own in (False, True))
    for half, theirs, full in zip(ours, torchs, exact, strict=True):
        assert half.dtype == torch.float32
        assert float((half - full).norm()) <= 2 * float((theirs - full).norm())


@both_ways
@pytest.mark.parametrize("behind_batch_norm", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_relu(inplace: bool, behind_batch_norm: bool, by: Way) -> None:
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    before = x * 1
    if behind_batch_norm:
        before.from_batch_norm = True
    y = by.relu(before, inplace)
    assert torch.equal(y, x.relu()) and (y is before) == inplace
    assert torch.equal(before, x.relu() if inplace else x)
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.tolist() == [0, 0, 12] and second.tolist() == [0, 0, 12]


@pytest.mark.parametrize("for_compiler", [False, True])
@pytest.mark.parametrize(
    "call",
    [nn.ReLU(), nn.ReLU(inplace=True), F.relu, torch.relu, Tensor.relu],
    ids=["module", "module in place", "functional", "function", "method"],
)
def test_every_way_to_call_relu_takes_the_cheap_one(call: Callable[[Tensor], Tensor], for_compiler: bool) -> None:
    x = torch.randn(3, requires_grad=True)
    with cheap(for_compiler=for_compiler):
        name = call(x * 1).grad_fn.name()
    assert name == ("_RectifyForCompilerBackward" if for_compiler else "_RectifyBackward")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.inplace = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inplace(torch.relu(self.norm(self.conv(x))) - 0.5).mean((-2, -1))


@pytest.mark.parametrize("for_compiler", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_networks_do_not_notice(training: bool, for_compiler: bool) -> None:
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for mode in (True, False):
        torch.manual_seed(0)
        network = Network().double().train(training)
        inputs = x.clone().requires_grad_()
        with cheap(for_compiler=for_compiler) if mode else torch.enable_grad():
            out = network(inputs)
        (gradient,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        (gradient.square().sum() + out.square().sum()).backward()
        found.append([out, gradient, *(p.grad for p in network.parameters()), *network.buffers()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_one_value_per_channel_is_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"), cheap():
        nn.BatchNorm1d(3)(torch.randn(1, 3))
