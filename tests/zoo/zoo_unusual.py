"""Networks that do more than layers: derivatives and linear algebra inside, caches, counters, checkpoints."""

from __future__ import annotations

import torch
from animals import CLASSES, add, floats, head, tokens
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

S = nn.Sequential
ROW = floats(5)
IMAGE = floats(2, 6, 6)


class TwoLayers(nn.Module):
    """What most networks here are built from."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)


class Checkpointed(TwoLayers):
    """Its first layer runs again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False))


class DerivativeInside(TwoLayers):
    """The slope of an energy is a feature."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = self.first(x)
            (slope,) = torch.autograd.grad(y.tanh().square().sum(), y, create_graph=True)
        return self.last(y + slope)


class MatrixLayer(TwoLayers):
    """Solves a linear system for each sample."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        matrix = torch.eye(6, dtype=x.dtype) * 2 + 0.1 * y.unsqueeze(2) * y.unsqueeze(1)
        return self.last(torch.linalg.solve(matrix, y) + torch.logdet(matrix).unsqueeze(-1))


class RadialBasis(nn.Module):
    """Distances to learned centres."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.centres, self.by_hand = nn.Parameter(torch.randn(6, 5)), by_hand
        self.width, self.last = nn.Parameter(torch.tensor(0.3)), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        squared = (x.unsqueeze(1) - self.centres).square().sum(-1) if self.by_hand else torch.cdist(x, self.centres)
        return self.last((-self.width * squared).exp())


class SpatialTransformer(nn.Module):
    """Moves the image before it looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.look = nn.Linear(72, 6), nn.Conv2d(2, 4, 3)
        self.last = head(4)

    def forward(self, x: Tensor) -> Tensor:
        still = torch.eye(2, 3, dtype=x.dtype)
        grid = F.affine_grid(still + 0.1 * self.where(x.flatten(1)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.last(torch.tanh(self.look(F.grid_sample(x, grid, align_corners=False))))


class Patches(nn.Module):
    """A convolution by unfold, and back by fold."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.last = nn.Linear(8, 8), head(2)

    def forward(self, x: Tensor) -> Tensor:
        patches = torch.tanh(self.mix(F.unfold(x, 2, stride=2).mT)).mT
        return self.last(F.fold(patches, (6, 6), 2, stride=2))


class CachedPositions(nn.Module):
    """Computes its positional encoding when it first sees a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.positions: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.positions is None:
            self.positions = torch.arange(x.shape[1], dtype=x.dtype).unsqueeze(-1) / x.shape[1]
        return self.last(torch.tanh(self.first(x + self.positions)).mean(1))


class CountsInPython(TwoLayers):
    """Warms up over its calls, counted by a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.first(x) * min(1.0, self.calls / 4)))


class KeepsActivations(TwoLayers):
    """Leaves what it computed in an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        self.features = torch.tanh(self.first(x))
        return self.last(self.features)


class Packed(nn.Module):
    """An LSTM over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 2).sum(1).clamp_min(1).cpu()
        _, (h, _) = self.layer(pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False))
        return self.last(h[-1])


class Symmetric(nn.Module):
    """A weight that is made from its parameter."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def symmetric() -> nn.Module:
    layer = nn.Linear(5, 5)
    register_parametrization(layer, "weight", Symmetric())
    return S(layer, nn.Tanh(), nn.Linear(5, CLASSES))


class Lists(nn.Module):
    """Parameters in lists and dictionaries, one of them a number."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(6, CLASSES))])
        self.scales = nn.ParameterDict({"temperature": nn.Parameter(torch.tensor(1.5))})

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x / self.scales["temperature"]


class Bytes(nn.Module):
    """Takes bytes and scales them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.to(torch.float64) / 255)


class Quantised(TwoLayers):
    """Rounds its weights and lets gradients pass."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight + ((8 * self.first.weight).round() / 8 - self.first.weight).detach()
        return self.last(torch.tanh(F.linear(x, weight, self.first.bias)))


class ReversesGradients(torch.autograd.Function):
    """The identity, whose derivative is −1; written the newer way, which can be stacked."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return -g


class Adversarial(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(ReversesGradients.apply(self.first(x))))


def initialised_lazily() -> nn.Module:
    network = S(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(CLASSES))
    network(torch.zeros(1, 5, dtype=torch.float64))
    return network


add("gradient checkpointing", Checkpointed, ROW)
add("gradient checkpointing, deep ensemble", Checkpointed, ROW, method="deep-ensemble")
add("derivative inside the network", DerivativeInside, ROW)
add("linear systems and determinants", MatrixLayer, ROW, method="forde-identity, log_prob")
add("radial basis functions", lambda: RadialBasis(by_hand=True), ROW, method="forde-pca")
add("radial basis functions by cdist, function-RDE", lambda: RadialBasis(by_hand=False), ROW, method="function-rde")
add("radial basis functions by cdist under FoRDE", lambda: RadialBasis(by_hand=False), ROW, refused=True)
add("spatial transformer, function-RDE", SpatialTransformer, IMAGE, method="function-rde")
add("spatial transformer", SpatialTransformer, IMAGE)
add("unfold and fold", Patches, IMAGE)
add("positions cached at the first call", CachedPositions, floats(4, 6))
add("counts its calls in Python", CountsInPython, ROW)
add("counts its calls in Python, deep ensemble", CountsInPython, ROW, method="deep-ensemble")
add("keeps its activations", KeepsActivations, ROW, part=True)
add("LSTM over packed sequences", Packed, tokens(4, 11), method="function-rde")
add("symmetric weights by a parametrisation", symmetric, ROW)
add("lists and dictionaries of parameters", Lists, ROW, method="weight-rde")
add(
    "bytes that it scales itself",
    Bytes,
    lambda batch, g: tokens(5, 256)(batch, g).to(torch.uint8),
    method="function-rde",
)
add("rounded weights, straight-through", Quantised, ROW)
add("reversed gradients by a function of its own", Adversarial, ROW)
add("lazy module that has seen a batch", initialised_lazily, ROW)
add(
    "BatchNorm on a batch of one",
    lambda: S(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)),
    ROW,
    batch=1,
    refused=True,
)
