"""Max-pooling with channels last: torch's values and derivatives of every order."""

from __future__ import annotations

import itertools

import pytest
import torch
from policies import cheap
from torch import Tensor, nn
from torch.nn import functional as F

from forde.double_backward.pooling import max_pool2d

LAST = torch.channels_last
WINDOWS = [
    {"kernel_size": size, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
    for size, stride, padding, dilation, ceil in itertools.product(
        (2, (3, 2)), (None, 2, (1, 3)), (0, 1), (1, 2), (False, True)
    )
]


def images(seed: int = 0, ties: bool = False, size: tuple[int, int] = (7, 6)) -> Tensor:
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x.round() if ties else x).contiguous(memory_format=LAST)


def derivatives(call, x: Tensor) -> list[Tensor]:
    """Value, gradient, second and third derivative, each along functions that are not linear."""
    x = x.clone().requires_grad_()
    y = call(x)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype).requires_grad_()
    (gx,) = torch.autograd.grad((y * g).sin().sum(), x, create_graph=True)
    second = torch.autograd.grad(gx.flatten(1).cos().sum(), (x, g), create_graph=True)
    third = torch.autograd.grad(second[0].square().sum() + second[1].square().sum(), (x, g))
    return [y, gx, *second, *third]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_all_derivatives_equal_torch(window: dict[str, object], ties: bool) -> None:
    x = images(ties=ties)
    found, expected = (derivatives(lambda x, f=f: f(x, **window), x) for f in (max_pool2d, F.max_pool2d))
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_finite_differences() -> None:
    x = images(size=(4, 5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: max_pool2d(x, 3, 2, 1), x)
    assert torch.autograd.gradgradcheck(lambda x: max_pool2d(x, 3, 2, 1).square(), x)


def test_channels_stay_last() -> None:
    """Also where cotangents come with channels first, as from a layer that flattens its input."""
    x = images().requires_grad_()
    with cheap():
        y = nn.MaxPool2d(2)(x)
    g = torch.randn(y.shape, dtype=torch.float64, requires_grad=True)
    (gx,) = torch.autograd.grad(y, x, g, create_graph=True)
    (gg,) = torch.autograd.grad(gx, g, torch.randn_like(gx))
    assert all(tensor.is_contiguous(memory_format=LAST) for tensor in (y, gx, gg))


def test_other_calls_are_left_to_torch() -> None:
    x = images()
    with cheap():
        y, winners = F.max_pool2d(x, 2, return_indices=True)
        assert torch.equal(y, F.max_pool2d(x, 2)) and winners.dtype == torch.int64
        assert torch.equal(F.max_pool2d(x[0], 2), y[0])
        assert torch.equal(F.max_pool2d(x.contiguous(), 2), y)
        with pytest.raises(RuntimeError, match="pad"):
            F.max_pool2d(x, 2, padding=2)
