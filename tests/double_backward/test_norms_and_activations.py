"""GroupNorm, InstanceNorm, GELU and SiLU with cheap second derivatives: torch's own numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from policies import TorchsOwn, cheap
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.compile import CompiledStep
from forde.double_backward import Policy, activations
from forde.double_backward.group_norm import group_norm, instance_norm
from forde.step import MemberLoop, PlainStep, Step

Call = Callable[..., Tensor]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


NORMS: dict[str, tuple[Call, Call, tuple[int, ...], tuple[int, ...]]] = {
    "group": (group_norm, F.group_norm, (2, 6, 2, 3), (6,)),
    "group of vectors": (group_norm, F.group_norm, (3, 6), (6,)),
    "instance": (instance_norm, F.instance_norm, (2, 3, 2, 3), (3,)),
}


def bound(norm: Call) -> Call:
    """A function of x, weight and bias."""

    def call(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.1) -> Tensor:
        if norm in (group_norm, F.group_norm):
            return norm(x, 3, weight, bias, eps)
        return norm(x, None, None, weight, bias, eps=eps)

    return call


@pytest.mark.parametrize("case", NORMS)
def test_norms(case: str) -> None:
    own, torchs, shape, affine = NORMS[case]
    # An eps that counts: the formulas have a term for it.
    ours, theirs = bound(own), bound(torchs)
    given = [tensor.requires_grad_() for tensor in (2 + random(*shape), random(*affine), random(*affine) - 1)]
    for tensors in (given, given[:1], given[:2]):
        torch.testing.assert_close(ours(*tensors), theirs(*tensors))
        assert torch.autograd.gradcheck(ours, tensors)
        assert torch.autograd.gradgradcheck(ours, tensors)


@pytest.mark.parametrize(("ours", "theirs"), [(activations.gelu, F.gelu), (activations.silu, F.silu)])
def test_activations(ours: Call, theirs: Call) -> None:
    x = torch.linspace(-6, 6, 41, dtype=torch.float64).requires_grad_()
    assert torch.equal(ours(x), theirs(x))
    assert torch.autograd.gradcheck(ours, (x,))
    assert torch.autograd.gradgradcheck(ours, (x,))
    own, torchs = (
        torch.autograd.grad(torch.autograd.grad(f(x).sin().sum(), x, create_graph=True)[0].sum(), x)[0]
        for f in (ours, theirs)
    )
    torch.testing.assert_close(own, torchs, rtol=1e-9, atol=1e-11)


class Network(nn.Module):
    """All of them, in both ways that they are called, in place and approximated too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.tracking = nn.InstanceNorm2d(4, track_running_stats=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.group(self.first(x)))
        y = F.silu(self.tracking(self.second(y)), inplace=True) + nn.SiLU()(self.instance(y))
        return self.head(nn.GELU("tanh")(y.mean((-2, -1))))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_networks_do_not_notice(layout: torch.memory_format) -> None:
    x = random(4, 2, 5, 5).contiguous(memory_format=layout)
    found = []
    for own in (True, False):
        torch.manual_seed(0)
        network = Network().double()
        inputs = x.clone().requires_grad_()
        with cheap() if own else torch.enable_grad():
            out = network(inputs)
        (gradient,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        (gradient.square().sum() + out.square().sum()).backward()
        found.append([out, gradient, *(p.grad for p in network.parameters()), *network.buffers()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.GELU(), nn.SiLU()], ids=str)
def test_halves_are_left_to_torch_which_widens_them(layer: nn.Module) -> None:
    def node(dtype: torch.dtype) -> str:
        with cheap():
            return type(layer.to(dtype)(torch.randn(2, 4, dtype=dtype, requires_grad=True)).grad_fn).__name__

    with torch.enable_grad():
        plain = type(
            layer.to(torch.bfloat16)(torch.randn(2, 4, dtype=torch.bfloat16, requires_grad=True)).grad_fn
        ).__name__
    assert node(torch.bfloat16) == plain != node(torch.float32)


def test_what_torch_refuses_is_refused() -> None:
    with cheap():
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            nn.GroupNorm(3, 3)(torch.randn(1, 3))
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            nn.InstanceNorm1d(3)(torch.randn(2, 3, 1))


def test_engines_agree_and_have_them() -> None:
    x, y = random(6, 2, 5, 5), torch.arange(6) % 3
    gradients = []
    method = forde.method("forde-identity")
    for compiles in (False, True):
        for policy in (Policy("cpu"), TorchsOwn("cpu")):
            runner = MemberLoop(forde.Ensemble(Network, 2).double().train(), method, policy=policy)
            plain = PlainStep(runner, method, metric_apart=compiles)
            step: Step = CompiledStep(plain, fuse=False) if compiles else plain
            step.update(x, y)
            assert step is plain or not step.is_plain
            gradients.append(torch.cat([p.grad.flatten() for p in runner.parameters()]))
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=1e-9, atol=1e-12)
