"""What people do in networks beside layers: changes in place, shared and frozen weights, hooks, state, other dtypes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from zoo import CLASSES, Then, add, floats, head

S = nn.Sequential
ROW = floats(5)
IMAGE = floats(2, 6, 6)


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x -= 1
        x *= 0.5
        return self.body(x)


class InPlace(nn.Module):
    """relu_, an in-place residual, and assignment to a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu_()
        z = self.second(y)
        z += y
        z[:, 0] = z[:, 1] * 2
        return self.last(z.sigmoid_())


class Tied(nn.Module):
    """One matrix used in both directions, one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(5, 4), nn.Linear(4, 5)
        self.up.weight = nn.Parameter(self.down.weight.detach().T.clone())
        self.twice, self.again = nn.Linear(5, 5), nn.Linear(5, 5)
        self.again.weight = self.twice.weight
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.up(torch.tanh(self.down(x)) @ self.down.weight @ self.down.weight.T))
        return self.last(self.twice(torch.tanh(self.again(torch.tanh(self.twice(x))))))


def frozen_first() -> nn.Module:
    network = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    network[0].requires_grad_(False)
    return network


def frozen_batchnorm() -> nn.Module:
    network = S(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), head(4)
    )
    network[1].running_mean.normal_()
    network[1].eval().requires_grad_(False)
    return network


class LoRA(nn.Module):
    """A frozen layer and a trained product of small rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 5)), nn.Parameter(0.1 * torch.randn(6, 2))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.base(x) + x @ self.a.T @ self.b.T))


class Fourier(nn.Module):
    """A learned filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(2, 6, 4, 2))
        self.last = head(2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.filter)
        return self.last(torch.tanh(torch.fft.irfft2(y, s=x.shape[-2:], norm="ortho")))


class Complex(nn.Module):
    """Complex weights on real inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5, dtype=torch.complex128))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x.to(torch.complex128) @ self.weight.T).abs())


class ComplexInputs(nn.Module):
    """Real weights on complex inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = S(nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([x.real, x.imag], -1))


class Mixed(nn.Module):
    """A body in float32 between two layers in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.body = nn.Linear(6, 6, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x).tanh().float()).double().tanh())


class SortsItsBatch(nn.Module):
    """Adds a little of what other samples have, by rank within the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        ordered = y.sort(0).values
        return self.last(y + 0.05 * ordered)


class NormalisesOverTheBatch(nn.Module):
    """BatchNorm written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = (y - y.mean(0)) / (y.var(0, correction=0) + 1e-3).sqrt()
        return self.last(y.tanh())


class Counts(nn.Module):
    """Buffers of its own: how often it was called, and a running average that it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        self.calls += 1
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return self.last(torch.tanh(y - self.average))


class RemembersDropout(nn.Module):
    """Dropout that writes its mask into a buffer, so that a step can be made again with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, CLASSES)
        self.register_buffer("mask", torch.ones(6, 8))
        self.replay = False

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        if not self.replay:
            self.mask.copy_((torch.rand_like(y) < 0.6).to(y.dtype) / 0.6)
        return self.last(y * self.mask)


class StochasticDepth(nn.Module):
    """Leaves layers out by random numbers of Python, NumPy or a generator of its own."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.last, self.by = nn.Linear(5, CLASSES), by
        self.generator = torch.Generator().manual_seed(5)

    def draw(self) -> float:
        if self.by == "python":
            return random.random()
        return float(np.random.rand()) if self.by == "numpy" else float(torch.rand((), generator=self.generator))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.draw() < 0.6:
                x = x + torch.tanh(layer(x))
        return self.last(x)


class Temperature(nn.Module):
    """A Python number that differs between members."""

    def __init__(self, t: float) -> None:
        super().__init__()
        self.t, self.body = t, S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.t


class BranchesOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.small, self.large = nn.Linear(5, 6), nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.large(y) if float(y.detach().mean()) > 0 else self.small(y)


class Detached(nn.Module):
    """A branch without gradient, and a part of the loss's way that is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.last(y + (y.round() - y).detach())


def hooked(kind: str) -> nn.Module:
    network = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    if kind == "gradient":
        network[0].weight.register_hook(lambda g: torch.zeros_like(g))
    elif kind == "clipping":
        network[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    elif kind == "forward":
        network[1].register_forward_hook(lambda module, given, out: 2 * out)
    elif kind == "input":
        network[2].register_forward_pre_hook(lambda module, given: (given[0] ** 2,))
    elif kind == "float":
        seen: list[float] = []
        network[1].register_forward_hook(lambda module, given, out: seen.append(float(out.detach().mean())))
    elif kind == "backward":
        network[1].register_full_backward_hook(lambda module, into, of: (0.5 * into[0],))
    return network


def normed(norm: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the older functions announce their end
            return S(norm(nn.Linear(5, 6)), nn.Tanh(), norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, CLASSES))

    return make


def normed_convolution(norm: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: S(norm(nn.Conv2d(2, 4, 3)), nn.Tanh(), head(4))


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.last = nn.Bilinear(5, 5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.pair(x, x.flip(1))))


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return g * x.cos()


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(OnceDifferentiable.apply(self.first(x)))


def perceptron(width: int = 6) -> nn.Module:
    return S(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, CLASSES))


add("changes its input in place", ChangesItsInput, ROW, part=True)
add("changes its input in place, deep ensemble", ChangesItsInput, ROW, method="deep-ensemble")
add("changes its input in place, function-RDE", ChangesItsInput, ROW, method="function-rde", part=True)
add("relu_, in-place residual, slices", InPlace, ROW, part=True)
add("tied weights", Tied, ROW, method="forde-identity, log_prob")
add("tied weights under weight-RDE", Tied, ROW, method="weight-rde")
add("frozen layer", frozen_first, ROW, part=True)
add("frozen layer under weight-RDE", frozen_first, ROW, method="weight-rde")
add("frozen BatchNorm in evaluation mode", frozen_batchnorm, IMAGE, part=True)
add("LoRA", LoRA, ROW, method="forde-pca", part=True)
add("FFT layer", Fourier, IMAGE)
add("complex weights", Complex, ROW)
add("complex weights, deep ensemble", Complex, ROW, method="deep-ensemble")
add(
    "complex inputs",
    ComplexInputs,
    lambda batch, g: torch.randn(batch, 5, generator=g, dtype=torch.complex128),
    method="function-rde",
)
add(
    "complex inputs under FoRDE",
    ComplexInputs,
    lambda batch, g: torch.randn(batch, 5, generator=g, dtype=torch.complex128),
    refused=True,
)
add("float32 inside float64", Mixed, ROW, tolerance=1e-4)
add("float32 inside float64 under weight-RDE", Mixed, ROW, method="weight-rde", tolerance=1e-4)
add("sorts its batch", SortsItsBatch, ROW, part=True)
add("normalises over the batch by hand", NormalisesOverTheBatch, ROW, part=True)
add("buffers of its own", Counts, ROW, part=True)
add("dropout with a mask that is known", RemembersDropout, ROW, replays="mask")
add("stochastic depth by Python's random numbers", lambda: StochasticDepth("python"), ROW)
add("stochastic depth by NumPy's random numbers", lambda: StochasticDepth("numpy"), ROW, method="function-rde")
add("stochastic depth by a generator of its own", lambda: StochasticDepth("own"), ROW)
add(
    "attributes that differ between members",
    [lambda: Temperature(1.0), lambda: Temperature(5.0), lambda: Temperature(0.5)],
    ROW,
)
add("branches on its data", BranchesOnData, ROW)
add("straight-through rounding, unused layer", Detached, ROW)
add("unused layer under weight-RDE", Detached, ROW, method="weight-rde")
add("gradient hook that zeroes a layer", lambda: hooked("gradient"), ROW)
add("gradient hook that clips", lambda: hooked("clipping"), ROW, method="forde-pca")
add("forward hook", lambda: hooked("forward"), ROW)
add("forward hook of one member", [lambda: hooked(""), lambda: hooked("forward"), lambda: hooked("")], ROW)
add("hook before a layer", lambda: hooked("input"), ROW)
add("hook that calls float()", lambda: hooked("float"), ROW)
add("backward hook of a module, deep ensemble", lambda: hooked("backward"), ROW, method="deep-ensemble")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    add("weight_norm, older kind", normed(torch.nn.utils.weight_norm), ROW, part=True)
    add("weight_norm, parametrisation", normed(parametrizations.weight_norm), ROW, part=True)
    add("spectral_norm, older kind", normed(torch.nn.utils.spectral_norm), ROW, part=True)
    add("spectral_norm, parametrisation", normed(parametrizations.spectral_norm), ROW, part=True)
    add("spectral_norm of a convolution", normed_convolution(parametrizations.spectral_norm), IMAGE, method="forde-pca")
    add(
        "orthogonal parametrisation",
        lambda: S(parametrizations.orthogonal(nn.Linear(5, 5)), nn.Tanh(), nn.Linear(5, CLASSES)),
        ROW,
    )
add("bilinear layer", Bilinear, ROW)
add("own function without second derivative", OwnFunction, ROW, refused=True)
add("own function without second derivative, deep ensemble", OwnFunction, ROW, method="deep-ensemble")
add("members of different widths", [lambda: perceptron(4), lambda: perceptron(6), lambda: perceptron(8)], ROW)
add(
    "members of different kinds",
    [perceptron, lambda: S(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))],
    ROW,
    members=2,
    method="function-rde",
)
add(
    "members of different widths under weight-RDE",
    [lambda: perceptron(4), lambda: perceptron(6)],
    ROW,
    members=2,
    method="weight-rde",
    refused=True,
)
add("one member", perceptron, ROW, members=1)
add("one member under function-RDE", perceptron, ROW, members=1, method="function-rde")
add("two members", perceptron, ROW, members=2, method="forde-pca", part=True)
add("batch of one", perceptron, ROW, batch=1)
add("batch of one, function-RDE", perceptron, ROW, batch=1, method="function-rde")
add("no hidden layer", lambda: nn.Linear(5, CLASSES), ROW, part=True)
add("returns a tuple", lambda: S(nn.Linear(5, CLASSES), Then(lambda x: (x, x))), ROW, refused=True)
add("returns a dictionary", lambda: S(nn.Linear(5, CLASSES), Then(lambda x: {"logits": x})), ROW, refused=True)
