"""Linear layers and ReLU of all members at once: what torch.vmap computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F

from forde.double_backward import Policy
from forde.double_backward.stacked import linear_of_all

STACKED = Policy("cpu", stacked=True)


def layers(bias: bool = True) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(3, 4, 5, generator=generator), torch.randn(3, 2, 5, generator=generator)
    b = torch.randn(3, 2, generator=generator) if bias else None
    return [None if tensor is None else tensor.double().requires_grad_() for tensor in (x, w, b)]


@pytest.mark.parametrize("bias", [False, True])
def test_finite_differences(bias: bool) -> None:
    x, w, b = layers(bias)
    torch.testing.assert_close(linear_of_all(x, w, b), torch.vmap(F.linear)(x, w, b) if bias else torch.bmm(x, w.mT))
    assert torch.autograd.gradcheck(linear_of_all, (x, w, b))
    assert torch.autograd.gradgradcheck(linear_of_all, (x, w, b))


def test_weight_gradients_lie_as_the_weights_do() -> None:
    x, w, b = layers()
    assert all(g.is_contiguous() for g in torch.autograd.grad(linear_of_all(x, w, b).square().sum(), (w, b)))


@pytest.mark.parametrize("shared", [False, True], ids=["own inputs", "the same inputs"])
@pytest.mark.parametrize("bias", [False, True])
def test_networks_get_the_same_derivatives(bias: bool, shared: bool) -> None:
    torch.manual_seed(0)
    members = [
        nn.Sequential(nn.Linear(5, 6, bias), nn.ReLU(), nn.Linear(6, 6, bias), nn.Tanh(), nn.Linear(6, 2)).double()
        for _ in range(3)
    ]
    parameters, _ = stack_module_state(members)
    x = torch.randn(4, 5, dtype=torch.float64).expand(3, 4, 5) if shared else torch.randn(3, 4, 5, dtype=torch.float64)
    found = []
    for own in (True, False):
        inputs = x.detach().requires_grad_()

        def call(tensors: dict[str, Tensor], x: Tensor, own: bool = own) -> Tensor:
            with STACKED.mode(twice=True) if own else torch.enable_grad():
                return functional_call(members[0], tensors, (x,))

        y = torch.vmap(call)(parameters, inputs)
        (first,) = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(
            first.sin().sum() + y.cos().sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        found.append([y, first, *second])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_other_calls_are_left_to_torch() -> None:
    """Shared weights, inputs with more axes, members on another axis, nested maps, no map at all."""
    x, w, b = (tensor.detach() for tensor in layers() if tensor is not None)

    def check(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected)

    with STACKED.mode(twice=True):
        check(torch.vmap(lambda x: F.linear(x, w[0], b[0]))(x), x @ w[0].mT + b[0])
        check(torch.vmap(F.linear)(x.unsqueeze(1), w, b), (x @ w.mT + b.unsqueeze(1)).unsqueeze(1))
        check(torch.vmap(F.linear, in_dims=(1, 0, 0))(x.transpose(0, 1), w, b), x @ w.mT + b.unsqueeze(1))
        check(torch.vmap(torch.vmap(F.linear))(x[None], w[None], b[None])[0], x @ w.mT + b.unsqueeze(1))
        check(F.linear(x[0], w[0], b[0]), x[0] @ w[0].mT + b[0])
        check(torch.vmap(lambda x: F.relu(x * 1, inplace=True))(x), x.clamp_min(0))
        check(torch.relu(x), x.clamp_min(0))


@pytest.mark.parametrize("padding", [0, 2, -1])
def test_no_member_trains_the_row_of_the_padding(padding: int) -> None:
    """As `F.embedding` of each member by itself; `torch.vmap` alone looks at the first member only."""
    words = torch.tensor([[0, 1, 2, 3], [3, 2, 0, 0], [2, 0, 1, 3]])
    w = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    with STACKED.mode(twice=True):
        rows = torch.vmap(lambda words, w: F.embedding(words, w, padding_idx=padding))(words, w)
        all_rows = torch.vmap(F.embedding)(words, w)
    expected = torch.stack([F.embedding(*pair, padding_idx=padding) for pair in zip(words, w, strict=True)])
    assert torch.equal(rows, expected) and torch.equal(all_rows, expected)
    found, by_itself = (torch.autograd.grad(y.sin().sum(), w)[0] for y in (rows, expected))
    torch.testing.assert_close(found, by_itself)
    assert not found[:, padding].any() and torch.autograd.grad(all_rows.sum(), w)[0][:, padding].any(-1).all()


def test_autocast_is_left_to_torch() -> None:
    x, w, b = (tensor.detach().float() for tensor in layers() if tensor is not None)
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.vmap(F.linear)(x, w, b)
        with STACKED.mode(twice=True):
            found = torch.vmap(F.linear)(x, w, b)
    assert found.dtype == expected.dtype and torch.equal(found, expected)
