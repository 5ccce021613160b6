"""Networks by name, and random batches that look to them as training data does."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from forde.errors import FordeError, unknown_name
from forde.models import MLP, preact_resnet18, resnet18, wrn16_4


class Problem(NamedTuple):
    """A network and the shape of what it takes and gives."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of one input: `[D]`, or `[C, H, W]` for images."""
    classes: int

    @property
    def size(self) -> int:
        """Side of the images, or number of inputs of a perceptron."""
        return self.shape[-1]

    @property
    def n_inputs(self) -> int:
        """Values in one input."""
        return torch.Size(self.shape).numel()

    def batch(self, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random inputs `[n, ...]` and labels `[n]`.

        >>> x, y = problem("wrn16-4").batch(5, torch.device("cpu"))
        >>> x.shape, y.shape
        (torch.Size([5, 3, 32, 32]), torch.Size([5]))
        """
        generator = torch.Generator().manual_seed(0)
        y = torch.randint(self.classes, (n,), generator=generator)
        if len(self.shape) == 1:
            return torch.randn(n, *self.shape, generator=generator).to(device), y.to(device)
        channels, height, width = self.shape
        # Images reach the network with channels last in memory, because they are normalised from bytes that are so.
        x = torch.randn(n, height, width, channels, generator=generator).permute(0, 3, 1, 2)
        return x.to(device), y.to(device)


def _small_conv(
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d, activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), activation(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False), norm(32), activation(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def _lenet(size: int) -> nn.Module:
    last = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * last**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def _mnist_cnn(size: int) -> nn.Module:
    """Of torch's first example, without its dropout."""
    last = (size - 4) // 2
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * last**2, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[int, Callable[[int], Problem]]] = {
    "toy-mlp": (2, lambda size: Problem(lambda: MLP(size, [50, 50], 2), (size,), 2)),
    "mlp": (64, lambda size: Problem(lambda: MLP(size, [128, 128], 10), (size,), 10)),
    "transfer-mlp": (768, lambda size: Problem(lambda: MLP(size, [512] * 3, 10, batch_norm=True), (size,), 10)),
    "small-conv": (16, lambda size: Problem(_small_conv, (3, size, size), 10)),
    "small-conv-groupnorm": (
        16, lambda size: Problem(lambda: _small_conv(lambda channels: nn.GroupNorm(4, channels)), (3, size, size), 10),
    ),
    "small-conv-gelu": (16, lambda size: Problem(lambda: _small_conv(activation=nn.GELU), (3, size, size), 10)),
    "small-conv-silu": (16, lambda size: Problem(lambda: _small_conv(activation=nn.SiLU), (3, size, size), 10)),
    "lenet": (32, lambda size: Problem(lambda: _lenet(size), (3, size, size), 10)),
    "mnist-cnn": (28, lambda size: Problem(lambda: _mnist_cnn(size), (1, size, size), 10)),
    "wrn16-4": (32, lambda size: Problem(lambda: wrn16_4(10), (3, size, size), 10)),
    "resnet18": (32, lambda size: Problem(lambda: resnet18(10), (3, size, size), 10)),
    "preact-resnet18": (64, lambda size: Problem(lambda: preact_resnet18(200), (3, size, size), 200)),
}  # fmt: skip
"""By name: the usual size, and the problem at any size."""


def problem(model: str, size: int | None = None) -> Problem:
    """A model by name, for images of another side (a perceptron: another number of inputs) if `size` is given.

    >>> problem("preact-resnet18").shape, problem("mlp", size=32).shape
    ((3, 64, 64), (32,))
    """
    if model not in MODELS:
        raise unknown_name("model", model, MODELS)
    usual, make = MODELS[model]
    if size is not None and size < 1:
        raise FordeError(f"size is {size}, but at least 1 was expected; {model} usually has {usual}.")
    return make(usual if size is None else size)
