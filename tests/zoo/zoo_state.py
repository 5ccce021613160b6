"""Networks with state: batches that mix samples, buffers, random numbers, attributes, hooks, parametrised weights."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import torch
from animals import CLASSES, add, floats, head
from torch import Tensor, nn
from torch.nn.utils import parametrizations

S = nn.Sequential
ROW = floats(5)
IMAGE = floats(2, 6, 6)


class SortsItsBatch(nn.Module):
    """Adds a little of what other samples have, by rank within the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.second(y + 0.05 * y.sort(0).values)))


class NormalisesOverTheBatch(nn.Module):
    """BatchNorm written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = (y - y.mean(0)) / (y.var(0, correction=0) + 1e-3).sqrt()
        return self.last(self.second(y.tanh()).tanh())


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


def hooked(kind: str) -> nn.Module:
    network = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    if kind == "gradient":
        network[0].weight.register_hook(torch.zeros_like)
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
add("gradient hook that zeroes a layer", lambda: hooked("gradient"), ROW)
add("gradient hook that clips", lambda: hooked("clipping"), ROW, method="forde-pca")
add("forward hook", lambda: hooked("forward"), ROW)
add("forward hook of one member", [lambda: hooked(""), lambda: hooked("forward"), lambda: hooked("")], ROW)
add("hook before a layer", lambda: hooked("input"), ROW)
add("hook that calls float()", lambda: hooked("float"), ROW)
add("backward hook of a module, deep ensemble", lambda: hooked("backward"), ROW, method="deep-ensemble")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    add("weight_norm, older kind", normed(torch.nn.utils.weight_norm), ROW)
    add("weight_norm, parametrisation", normed(parametrizations.weight_norm), ROW)
    add("spectral_norm, older kind", normed(torch.nn.utils.spectral_norm), ROW, part=True)
    add("spectral_norm, parametrisation", normed(parametrizations.spectral_norm), ROW, part=True)
    add("spectral_norm of a convolution", normed_convolution(parametrizations.spectral_norm), IMAGE, method="forde-pca")
    add(
        "orthogonal parametrisation",
        lambda: S(parametrizations.orthogonal(nn.Linear(5, 5)), nn.Tanh(), nn.Linear(5, CLASSES)),
        ROW,
    )
