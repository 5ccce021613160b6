"""Networks that a callback changes between two steps, and such whose second step takes another way through the code."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import torch
from animals import CLASSES, Then, add, floats, head
from torch import Tensor, nn

S = nn.Sequential
ROW = floats(5)
IMAGE = floats(2, 6, 6)


def perceptron() -> nn.Module:
    """Known to every engine, so that each runs it in its fastest way."""
    return S(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def frozen() -> nn.Module:
    network = perceptron()
    network[3].requires_grad_(False)
    return network


def convolutions() -> nn.Module:
    return S(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Tanh(), head(4))


def dropping() -> nn.Module:
    return S(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.0), nn.Linear(6, CLASSES))


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t, self.body = 1.0, perceptron()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.t


def freeze(network: nn.Module) -> None:
    network[3].requires_grad_(False)


def unfreeze(network: nn.Module) -> None:
    network[3].requires_grad_(True)


def cool(network: nn.Module) -> None:
    network.t = 0.5


def drop_all(network: nn.Module) -> None:
    network[2].p = 1.0


def stop_statistics(network: nn.Module) -> None:
    network[1].eval()


def double_by_hook(network: nn.Module) -> None:
    network[2].register_forward_hook(lambda module, given, out: 2 * out)


def swap_activation(network: nn.Module) -> None:
    network[2] = nn.ReLU()


@torch.no_grad()
def clip_weights(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.clamp_(-0.1, 0.1)


def load_weights(network: nn.Module) -> None:
    network.load_state_dict({name: 0.5 * tensor for name, tensor in network.state_dict().items()})


class BranchesOnTheSecondBatch(nn.Module):
    """Its first batch is positive on average, its second negative."""

    def __init__(self, decide: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.decide = decide
        self.first, self.small, self.large = nn.Linear(5, 6), nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.large(y) if self.decide(x.detach()) else self.small(y)


def by_float(x: Tensor) -> bool:
    return float(x.mean()) > 0


def by_tensor(x: Tensor) -> bool:
    return bool((x.mean() > 0).all())


def by_numpy(x: Tensor) -> bool:
    return bool(x.numpy().mean() > 0)


def alternating() -> Callable[[int, torch.Generator], Tensor]:
    signs = itertools.cycle([1.0, -1.0])

    def draw(batch: int, generator: torch.Generator) -> Tensor:
        return next(signs) * torch.rand(batch, 5, generator=generator, dtype=torch.float64)

    return draw


class OwnRandomNumbers(nn.Module):
    """Scales by random numbers of a generator of Python's or NumPy's that it owns."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw, self.body = draw, S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * (0.5 + self.draw()))


class WeightsByNumPy(nn.Module):
    """Leaves PyTorch for a moment, where no gradient is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.from_numpy(np.asarray(x.detach().numpy().mean(0)))
        return self.last(torch.tanh(self.first(x - mean)))


def counting() -> nn.Module:
    """Its state is in a function, where nobody looks."""
    numbers = itertools.count(1)
    return S(nn.Linear(5, 6), Then(lambda x: x * min(1.0, next(numbers) / 4)), nn.Tanh(), nn.Linear(6, CLASSES))


add("frozen between steps", perceptron, ROW, between=freeze)
add("frozen between steps, weight-RDE", perceptron, ROW, between=freeze, method="weight-rde")
add("unfrozen between steps", frozen, ROW, between=unfreeze)
add("convolution frozen between steps", convolutions, IMAGE, between=freeze, method="forde-pca")
add("number changed between steps", Temperature, ROW, between=cool)
add("dropout rate changed between steps", dropping, ROW, between=drop_all, method="function-rde")
add("BatchNorm stopped between steps", perceptron, ROW, between=stop_statistics)
add("BatchNorm2d stopped between steps", convolutions, IMAGE, between=stop_statistics)
add("hook added between steps", perceptron, ROW, between=double_by_hook)
add("activation swapped between steps", perceptron, ROW, between=swap_activation)
add("weights clipped between steps", perceptron, ROW, between=clip_weights)
add("weights loaded between steps", convolutions, IMAGE, between=load_weights)
add("branches on the second batch by float()", lambda: BranchesOnTheSecondBatch(by_float), alternating())
add("branches on the second batch by bool()", lambda: BranchesOnTheSecondBatch(by_tensor), alternating())
add("branches on the second batch by NumPy", lambda: BranchesOnTheSecondBatch(by_numpy), alternating())
add("random numbers of its own random.Random", lambda: OwnRandomNumbers(random.Random(3).random), ROW)
add("random numbers of its own NumPy generator", lambda: OwnRandomNumbers(np.random.default_rng(3).random), ROW)
add("computes a constant by NumPy", WeightsByNumPy, ROW)
add("counts its calls in a closure", counting, ROW, unrepeatable=True)
