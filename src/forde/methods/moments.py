"""Moments of the weights along a training run, draws from the Gaussian that they describe, and BatchNorm for a draw.

With θ_1 … θ_n collected, mean_n and square_n their running means of θ and θ²:

    row_k = θ_k − mean_k                     of the last `rank` ones (so row_1 = 0)
    θ = mean + √scale [ √max(square − mean², 1e-30) ⊙ z_1 + Dᵀ z_2 / √(rank − 1) ],   D the rows, z ~ N(0, I)

`rank` in the denominator is the largest number of rows, also while there are fewer. square − mean² cancels, so moments
are kept in float64, and on the CPU: a GPU's memory stays free, and a seed gives the same draws on any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor, nn

from forde.arguments import Input, called
from forde.inference import Untouched
from forde.torch_private import batch_norms

SMALLEST_VARIANCE = 1e-30


class Moments:
    """Mean, mean square and last deviations of a network's parameters. Serves any training loop.

    Args:
        rank: how many deviations are kept.

    >>> network, moments = nn.Linear(2, 1), Moments(rank=5)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = nn.init.constant_(network.weight, value)
    ...     moments.collect(network)
    >>> moments.mean["weight"].tolist(), [row["weight"][0, 0].item() for row in moments.rows]
    ([[3.0, 3.0]], [0.0, 0.5, 3.0])
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.count = 0
        self.mean: dict[str, Tensor] = {}
        self.square: dict[str, Tensor] = {}
        """Mean of θ²; both float64, by parameter's name."""
        self.rows: list[dict[str, Tensor]] = []
        """The last `rank` deviations, in the parameters' own precision or float32: they are differences already."""

    def collect(self, network: nn.Module) -> None:
        """Take a network's weights into account."""
        n, row = self.count, {}
        for name, parameter in network.named_parameters():
            value = _real(parameter)
            theta = value.to("cpu", torch.float64, copy=True)
            mean, square = self.mean.get(name), self.square.get(name)
            self.mean[name] = mean = theta if mean is None else (n * mean + theta) / (n + 1)
            self.square[name] = theta.square() if square is None else (n * square + theta.square()) / (n + 1)
            row[name] = (theta - mean).to(torch.promote_types(value.dtype, torch.float32))
        self.rows = [*self.rows, row][-self.rank :]
        self.count = n + 1

    @torch.no_grad()
    def draw(self, network: nn.Module, generator: torch.Generator, *, scale: float = 0.5) -> None:
        """Put a draw into a network's trained parameters; those that are frozen stay.

        Args:
            scale: factor of the covariance; 0 gives the mean, which is stochastic weight averaging (SWA).
        """
        z2 = torch.randn(len(self.rows), generator=generator, dtype=torch.float64) / sqrt(self.rank - 1)
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad:
                continue
            mean = self.mean[name]
            z1 = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
            deviation = (self.square[name] - mean.square()).clamp_min(SMALLEST_VARIANCE).sqrt().mul_(z1)
            for row, z in zip(self.rows, z2.tolist(), strict=True):
                deviation.add_(row[name], alpha=z)
            _real(parameter).copy_(mean + sqrt(scale) * deviation)

    def tensors(self) -> dict[str, Tensor]:
        """All there is, by name."""
        return {
            "count": torch.tensor(self.count),
            **{f"mean.{name}": value for name, value in self.mean.items()},
            **{f"square.{name}": value for name, value in self.square.items()},
            **{f"row.{k}.{name}": value for k, row in enumerate(self.rows) for name, value in row.items()},
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `tensors`."""
        self.count = int(tensors["count"])
        self.mean, self.square = _part(tensors, "mean."), _part(tensors, "square.")
        self.rows = [_part(tensors, f"row.{k}.") for k in range(min(self.count, self.rank))]


def _real(parameter: Tensor) -> Tensor:
    """A parameter as real numbers, in the same memory."""
    value = parameter.detach()
    return torch.view_as_real(value) if value.is_complex() else value


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def refresh_batch_norm(networks: Sequence[nn.Module], batches: Iterable[Input]) -> int:
    """Estimate BatchNorm's statistics of networks anew, from one pass over the training inputs.

    The mean becomes that of all samples, the variance the mean of the batches' unbiased ones, weighted by their sizes.
    It is not the variance of all samples, but what the layer divides by in training, so batches should be shuffled.
    A batch of one sample has no variance and is left out. Layers in evaluation mode keep their statistics.

    Returns:
        How many samples were seen; 0, without drawing a batch, where no layer wants any.

    >>> network = nn.BatchNorm1d(1, momentum=0.01)
    >>> refresh_batch_norm([network], [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [4.0], [10.0]])])
    5
    >>> network.running_mean.item(), network.running_var.item(), network.momentum  # (2 · 2 + 3 · 12) / 5
    (4.0, 8.0, 0.01)
    """
    layers = [layer for network in networks for layer in network.modules() if isinstance(layer, batch_norms())]
    layers = [layer for layer in layers if layer.training and layer.running_mean is not None]
    seen = 0
    with _own_momentum(layers):
        for x in batches if layers else ():
            if len(x) < 2:
                continue
            seen += len(x)
            for layer in layers:
                layer.momentum = len(x) / seen
            untouched = Untouched(x)
            for network in networks:
                called(network, untouched.copy())
    return seen


@contextmanager
def _own_momentum(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Statistics begin at nothing; afterwards layers have the momentum that they had."""
    momenta = [(layer, layer.momentum) for layer in layers]
    try:
        for layer, _ in momenta:
            layer.reset_running_stats()  # type: ignore[operator]
        yield
    finally:
        for layer, momentum in momenta:
            layer.momentum = momentum
