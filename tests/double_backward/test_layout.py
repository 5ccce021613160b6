"""Orders of memory that cotangents are brought into, and gradients that nobody asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from forde.double_backward.activations import in_layout_of
from forde.torch_private import wanted

LAST, FIRST = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize("like", [FIRST, LAST], ids=str)
@pytest.mark.parametrize("order", [FIRST, LAST], ids=str)
def test_same_numbers_in_the_other_order(order: torch.memory_format, like: torch.memory_format) -> None:
    tensor, other = torch.randn(2, 2, 3, 4, 5).unbind()
    tensor, other = tensor.contiguous(memory_format=order), other.contiguous(memory_format=like)
    found = in_layout_of(tensor, other)
    assert torch.equal(found, tensor) and found.stride() == other.stride()
    assert (found is tensor) == (order == like)


def test_volumes() -> None:
    other = torch.randn(2, 3, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d)
    assert in_layout_of(torch.randn(2, 3, 2, 2, 2), other).stride() == other.stride()


@pytest.mark.parametrize(
    ("tensor", "like"),
    [
        (torch.randn(2, 3), torch.randn(2, 3)),
        (torch.randn(2, 3, 4).transpose(1, 2), torch.randn(2, 4, 3)),
        (torch.randn(2, 3, 1, 1).expand(2, 3, 4, 4), torch.randn(2, 3, 4, 4)),
        (torch.randn(2, 3, 4, 4), torch.randn(2, 1, 4, 4)),  # both orders at once
        (torch.randn(2, 3, 4, 4), torch.randn(4, 4, 3, 2).permute(3, 2, 1, 0)),  # neither
    ],
    ids=["vectors", "signals", "expanded", "one channel", "permuted"],
)
def test_what_is_left_alone(tensor: Tensor, like: Tensor) -> None:
    assert in_layout_of(tensor, like) is tensor


def test_derivative_passes_through() -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    like = torch.randn(2, 3, 2, 2).contiguous(memory_format=LAST)
    assert torch.autograd.gradcheck(lambda x: in_layout_of(x, like), x)


class Product(torch.autograd.Function):
    """a·b + c, which notes what it is asked for."""

    asked: list[bool]

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b if c is None else a * b + c

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        Product.asked = wanted(ctx, 3)
        (a, b), (g,) = ctx.saved_tensors, gradients
        return g * b, g * a, g if ctx.needs_input_grad[2] else None


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("way", ["grad", "backward"])
@pytest.mark.parametrize("chosen", ["a", "b", "c", "ab", "bc", "ac", "abc"])
def test_only_what_is_asked_for(chosen: str, way: str, leaves: bool) -> None:
    named = {name: torch.ones(2, requires_grad=True) for name in "abc"}
    y = Product.apply(*(tensor if leaves else tensor * 1 for tensor in named.values())).sum()
    inputs = [named[name] for name in chosen]
    if way == "grad":
        torch.autograd.grad(y, inputs)
    else:
        torch.autograd.backward(y, inputs=inputs)
    assert Product.asked == [name in chosen for name in "abc"]


def test_everything_where_nothing_is_chosen() -> None:
    a, b = torch.ones(2, 3, requires_grad=True).unbind()
    Product.apply(a, b, None).sum().backward()
    assert Product.asked == [True, True, False]


def test_frozen_arguments_are_never_wanted() -> None:
    a, b = torch.ones(3, requires_grad=True), torch.ones(3)
    Product.apply(a, b, None).sum().backward()
    assert Product.asked == [True, False, False]
