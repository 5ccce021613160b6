"""Convolutions in shapes that cuDNN is fast at: the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from forde.double_backward import Policy
from forde.double_backward.convolution import good_shape

GEOMETRIES = [(3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (1, (3, 2), 0), (1, 2, 1)]


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), GEOMETRIES)
def test_convolution_in_a_good_shape_for_cudnn_is_the_same(
    halved: bool, kernel: int, stride: Any, padding: int
) -> None:
    layer = nn.Conv2d(3, 4, kernel, stride, padding, dtype=torch.float64)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    found_x, weight, found_stride, found_padding = good_shape(x, layer.weight, stride, padding, halved=halved)
    assert found_x.shape[1] == (8 if halved else 3)
    assert found_stride == (1, 1) or kernel == 3 or padding == 1
    found, expected = F.conv2d(found_x, weight, layer.bias, found_stride, found_padding), layer(x)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad((y**2).sum(), [x, layer.weight]) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "used"),
    [
        (3, 1, 1, 1, (1, 1)),
        (3, 2, 1, 1, (1, 1)),
        (3, 1, 2, 2, (1, 1)),
        ((3, 5), 1, (1, 2), 1, (1, 1)),
        (3, 1, 2, 1, (3, 3)),  # three places
        (3, 2, 2, 1, (3, 3)),  # two places
        (2, 2, 1, 2, (2, 2)),  # the pixel lies between the weights
        (2, 5, 2, 1, (2, 2)),  # the pixel lies behind them
    ],
)
def test_convolution_of_one_pixel_uses_one_weight(
    kernel: Any, stride: int, padding: Any, dilation: int, used: tuple[int, int]
) -> None:
    layer = nn.Conv2d(3, 4, kernel, stride, padding, dilation, dtype=torch.float64)
    x = torch.randn(2, 3, 1, 1, dtype=torch.float64)
    *found, found_padding = good_shape(x, layer.weight, stride, padding, dilation, halved=False)
    assert found[1].shape[2:] == used
    found_x, weight, found_stride = found
    y = F.conv2d(found_x, weight, layer.bias, found_stride, found_padding, 1 if used == (1, 1) else dilation)
    torch.testing.assert_close(y, layer(x))


def test_shapes_stay_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("forde.double_backward.convolution.good_shape")  # would fail if it were called
    layer, x = nn.Conv2d(3, 4, 1, stride=2), torch.randn(2, 3, 5, 5)
    with Policy("cuda", traced=True).mode(twice=False):
        found = layer(x)
    assert torch.equal(found, layer(x))
