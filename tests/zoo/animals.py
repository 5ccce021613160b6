"""What an animal of the zoo is: a network, its inputs, and the method that it is trained with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from independent_step import Recipe
from torch import Tensor, nn

CLASSES = 3
PART = 0.4
"""Share of the batch; 0.4 of 6 samples are 3, rounded up."""
RECIPES = {
    "deep-ensemble": Recipe("deep-ensemble"),
    "weight-rde": Recipe("weight-rde"),
    "function-rde": Recipe("function-rde"),
    "forde-identity": Recipe("forde"),
    "forde-identity, log_prob": Recipe("forde", output="log_prob"),
    "forde-pca": Recipe("forde", pca=True),
    "forde-pca, log_prob": Recipe("forde", pca=True, output="log_prob"),
}

Make = Callable[[], nn.Module]
Inputs = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Animal:
    """A network and how it is tried."""

    name: str
    make: Make | Sequence[Make]
    inputs: Inputs
    method: str = "forde-identity"
    members: int = 3
    batch: int = 6
    part: bool = False
    """Whether it is tried on a part of the batch too."""
    refused: bool = False
    """Whether a sentence is the right answer of every engine; otherwise the loop over members must be exact."""
    unrepeatable: bool = False
    """Whether a sentence is the right answer where its forward pass would be made again (memory low)."""
    random: bool = False
    """Whether it draws torch's random numbers. Stacked or traced members may draw them in another order; what they
    come to is then compared in distribution."""
    replays: str | None = None
    """A buffer into which it writes its random numbers, and from which it takes them where `replay` is set."""
    between: Callable[[nn.Module], None] | None = None
    """What a callback does to each member after the first step."""
    formulas_of: Make | None = None
    """The same network without what keeps the formulas from running it."""
    tolerance: float = 1e-8
    """Largest relative difference; a network that computes in float32 inside has that precision."""
    needs: str | None = None
    """An optional package."""

    def recipe(self, *, part: bool) -> Recipe:
        return replace(RECIPES[self.method], fraction=PART if part else 1.0)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Two of one shape."""
        generator = torch.Generator().manual_seed(7)
        labels = torch.arange(self.batch) % CLASSES
        return [(self.inputs(self.batch, generator), labels.roll(i)) for i in range(2)]


ZOO: dict[str, Animal] = {}


def floats(*shape: int) -> Inputs:
    """Normal numbers, `[B, *shape]`."""

    def draw(batch: int, generator: torch.Generator) -> Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    return draw


def tokens(length: int, vocabulary: int) -> Inputs:
    """Whole numbers `[B, length]`."""

    def draw(batch: int, generator: torch.Generator) -> Tensor:
        return torch.randint(vocabulary, (batch, length), generator=generator)

    return draw


def add(name: str, make: Make | Sequence[Make], inputs: Inputs, **how: object) -> None:
    """Take an animal in."""
    assert name not in ZOO, name
    ZOO[name] = Animal(name, make, inputs, **how)  # type: ignore[arg-type]


class Then(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Mean(nn.Module):
    """Over an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axis)


def head(features: int) -> nn.Sequential:
    """Average over pixels or steps, then a linear layer: `[B, features, ...]` → logits."""
    return nn.Sequential(nn.Flatten(2), Mean(-1), nn.Linear(features, CLASSES))
