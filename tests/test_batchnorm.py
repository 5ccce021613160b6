"""BatchNorm and ReLU with cheap second derivatives: the same values and derivatives as torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forde.engine.batchnorm import batch_norm, relu
from forde.engine.convolution import ShapesForCudnn, TwiceDifferentiable, good_shape

SHAPES = [(5, 3), (4, 3, 6), (4, 3, 2, 3), (2, 3, 2, 2, 2)]
both_ways = pytest.mark.parametrize("open_up", [False, True], ids=["kernels", "formulas"])


def tensors(shape: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = 2 + torch.randn(shape, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    return [tensor.requires_grad_() for tensor in (y, weight, bias)]


@both_ways
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_statistics_and_derivatives(shape: tuple[int, ...], open_up: bool) -> None:
    y, weight, bias = tensors(shape)
    mean, var = torch.zeros(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    found = batch_norm(y, mean[0], var[0], weight, bias, 0.3, 1e-3, open_up=open_up)
    expected = F.batch_norm(y, mean[1], var[1], weight, bias, True, 0.3, 1e-3)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mean[0], mean[1])
    torch.testing.assert_close(var[0], var[1])

    def normalised(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return batch_norm(y, None, None, weight, bias, open_up=open_up)

    assert torch.autograd.gradcheck(normalised, (y, weight, bias))
    assert torch.autograd.gradgradcheck(normalised, (y, weight, bias))
    assert torch.autograd.gradgradcheck(lambda y: batch_norm(y, None, None, open_up=open_up), (y,))


@both_ways
def test_half_precision_sums_in_float32(open_up: bool) -> None:
    y = 100 + torch.randn(64, 3, 8, 8).bfloat16()
    found = batch_norm(y, None, None, torch.ones(3), torch.zeros(3), open_up=open_up)
    assert found.dtype == torch.bfloat16
    expected = F.batch_norm(y.double(), None, None, training=True)
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("open_up", [False, True])
def test_relu(open_up: bool) -> None:
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    y = relu(x, open_up=open_up)
    assert torch.equal(y, x.relu())
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.tolist() == [0, 0, 12] and second.tolist() == [0, 0, 12]


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
        with TwiceDifferentiable(for_compiler=for_compiler) if mode else torch.enable_grad():
            out = network(inputs)
        (gradient,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        (gradient.square().sum() + out.square().sum()).backward()
        found.append([out, gradient, *(p.grad for p in network.parameters()), *network.buffers()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_one_value_per_channel_is_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"), TwiceDifferentiable():
        nn.BatchNorm1d(3)(torch.randn(1, 3))


GEOMETRIES = [(3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (1, (3, 2), 0), (1, 2, 1)]


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), GEOMETRIES)
def test_convolution_in_a_good_shape_for_cudnn_is_the_same(
    halved: bool, kernel: int, stride: Any, padding: int
) -> None:
    layer = nn.Conv2d(3, 4, kernel, stride, padding, dtype=torch.float64)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    found_x, weight, found_stride = good_shape(x, layer.weight, stride, padding, halved=halved)
    assert found_x.shape[1] == (8 if halved else 3)
    assert found_stride == (1, 1) or kernel == 3 or padding == 1
    found, expected = F.conv2d(found_x, weight, layer.bias, found_stride, padding), layer(x)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad((y**2).sum(), [x, layer.weight]) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_shapes_stay_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("forde.engine.convolution.good_shape")  # would fail if it were called
    layer, x = nn.Conv2d(3, 4, 1, stride=2), torch.randn(2, 3, 5, 5)
    with ShapesForCudnn():
        found = layer(x)
    assert torch.equal(found, layer(x))
