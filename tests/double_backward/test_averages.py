"""Means over places: torch's values and derivatives, and a gradient that is a view."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from policies import cheap
from torch import Tensor, nn
from torch.nn import functional as F

from forde.double_backward.pooling import averaging

CALLS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "mean of an axis": ((3, 4, 5), lambda x: x.mean(-1)),
    "mean of axes": ((3, 4, 5, 2), lambda x: torch.mean(x, (2, 3))),
    "mean, axes kept": ((3, 4, 5, 2), lambda x: x.mean(dim=[-2, -1], keepdim=True)),
    "mean, axes kept by position": ((3, 4, 5, 2), lambda x: x.mean((0, 3), True)),
    "pool of a signal": ((3, 4, 5), lambda x: F.adaptive_avg_pool1d(x, 1)),
    "pool": ((3, 4, 5, 2), lambda x: F.adaptive_avg_pool2d(x, (1, 1))),
    "pool of a volume": ((3, 4, 5, 2, 3), lambda x: F.adaptive_avg_pool3d(x, 1)),
    "module": ((3, 4, 5, 2), nn.AdaptiveAvgPool2d(1)),
    "single image": ((4, 5, 2), nn.AdaptiveAvgPool2d(1)),
    "mean of all": ((3, 4), lambda x: x.mean()),
    "mean of no axis": ((3, 4), lambda x: x.mean(())),
    "another dtype": ((3, 4), lambda x: x.mean(1, dtype=torch.float32).double()),
    "larger pool": ((3, 4, 5, 6), lambda x: F.adaptive_avg_pool2d(x, (2, 3))),
    "pool of one axis": ((3, 4, 5, 6), lambda x: F.adaptive_avg_pool2d(x, (1, None))),
}


@pytest.mark.parametrize("name", CALLS)
def test_value_and_derivatives(name: str) -> None:
    shape, call = CALLS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    found = []
    for own in (True, False):
        with cheap() if own else torch.enable_grad():
            y = call(x)
        (first,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        found.append([y, first, *torch.autograd.grad(first.square().sum(), x)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_finite_differences() -> None:
    x = torch.randn(2, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    average = averaging(torch.mean)
    assert torch.autograd.gradcheck(lambda x: average(x, (2, 3)), x)
    assert torch.autograd.gradgradcheck(lambda x: average(x, (2, 3)).sin(), x)


def test_gradient_is_a_view() -> None:
    """Nothing is written for it, whatever the network's order of memory is."""
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    with cheap():
        y = F.adaptive_avg_pool2d(x, 1)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert gradient.stride()[2:] == (0, 0)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.complex64], ids=str)
def test_what_torch_adds_up_in_another_type_is_left_to_it(dtype: torch.dtype) -> None:
    x = torch.full((70_000, 1), 2.0).to(dtype)  # the sum is beyond half precision
    with cheap():
        assert torch.equal(x.mean(0), torch.tensor([2.0]).to(dtype))


def test_errors_are_those_of_torch() -> None:
    with cheap(), pytest.raises(RuntimeError, match="dtype"):
        torch.ones(3, 2, dtype=torch.int64).mean(1)
    with cheap(), pytest.raises(IndexError, match="out of range"):
        torch.ones(3, 2).mean(2)


def test_empty_batch() -> None:
    with cheap():
        assert F.adaptive_avg_pool2d(torch.empty(0, 3, 4, 4), 1).shape == (0, 3, 1, 1)
        assert bool(torch.empty(0, 3).mean(0).isnan().all())
