"""Tasks that the tests of likelihoods run over: network, data, and the formulas written out in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forde.likelihoods import (
    Binary,
    Classification,
    DenseClassification,
    LearnedNoiseRegression,
    Likelihood,
    MultiLabel,
    Regression,
)

Formula = Callable[[Tensor, Tensor], Tensor]
WEIGHTS = [0.5, 2.0, 1.0]
DOUBLE = torch.tensor(WEIGHTS, dtype=torch.float64)


@dataclass(frozen=True)
class Task:
    likelihood: Likelihood
    make_network: Callable[[], nn.Module]
    hidden: str
    """The layer whose output is a feature."""
    x: Tensor
    y: Tensor
    loss: Formula
    """Of output and targets, by torch's own functions."""
    scalar: Formula
    """Summed over the batch."""
    log_prob: Formula | None
    """Summed over the batch."""


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def perceptron(outputs: int, *after: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs), *after)


def image_to_image(channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, channels, 1))


def tagger(channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv1d(4, channels, 1))


class Single(nn.Module):
    """Outputs `[B]`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(1)()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


def picked(values: Tensor, y: Tensor, ignored: int | None = None) -> Tensor:
    """Σ of the values of the true class, along axis 1, by a one-hot mask."""
    classes = torch.arange(values.shape[1]).view(-1, *[1] * (y.ndim - 1))
    return (values * (y.unsqueeze(1) == classes)).sum()


def gaussian(noise: float) -> Formula:
    return lambda mean, y: (
        F.gaussian_nll_loss(mean, y, torch.full_like(mean, noise**2), full=True, reduction="sum") / len(y)
    )


def learned(axis: int) -> Formula:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        mean, raw = output.chunk(2, axis)
        return F.gaussian_nll_loss(mean, y, F.softplus(raw) + 1e-6, full=True, reduction="sum") / len(y)

    return loss


SOFT = normal(8, 3, seed=2).softmax(-1)
HARD = torch.tensor([0, 2, 1, 1, 2, 0, 0, 1])
SOME = torch.tensor([0, 2, -100, 1, 2, -100, 0, 1])
YES = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1])
MANY = (normal(8, 3, seed=3) > 0).long()
PIXELS = torch.randint(3, (8, 4, 4), generator=torch.Generator().manual_seed(4))
MASKED = torch.where(normal(8, 4, 4, seed=5) > 1, 255, PIXELS)
TOKENS = torch.where(normal(8, 6, seed=6) > 1, -100, PIXELS.flatten(1)[:, :6])
SOFT_PIXELS = normal(8, 3, 4, 4, seed=7).softmax(1)

ROWS, IMAGES, SERIES = normal(8, 5), normal(8, 2, 4, 4), normal(8, 2, 6)


def log(formula: Formula) -> Formula:
    return lambda output, y: formula(output.log_softmax(1), y)


def soft(values: Tensor, y: Tensor) -> Tensor:
    return (values * y).sum()


def odds(output: Tensor, y: Tensor) -> Tensor:
    return torch.where(y == 1, output, -output).sum()


def bernoulli(output: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Bernoulli(logits=output).log_prob(y.to(output.dtype)).sum()


def total(output: Tensor, y: Tensor) -> Tensor:
    return output.sum()


TASKS: dict[str, Task] = {
    "class weights and smoothing": Task(
        Classification(class_weights=DOUBLE, label_smoothing=0.1), perceptron(3), "0", ROWS, HARD,
        nn.CrossEntropyLoss(weight=DOUBLE, label_smoothing=0.1), picked, log(picked),
    ),
    "ignored labels": Task(
        Classification(class_weights=WEIGHTS, ignore_index=-100), perceptron(3), "0", ROWS, SOME,
        nn.CrossEntropyLoss(weight=DOUBLE, ignore_index=-100), picked, log(picked),
    ),
    "soft labels": Task(
        Classification(class_weights=WEIGHTS, label_smoothing=0.2), perceptron(3), "0", ROWS, SOFT,
        nn.CrossEntropyLoss(weight=DOUBLE, label_smoothing=0.2), soft, log(soft),
    ),
    "binary [B, 1]": Task(
        Binary(pos_weight=3.0), perceptron(1), "0", ROWS, YES,
        lambda f, y: F.binary_cross_entropy_with_logits(f[:, 0], y.double(), pos_weight=torch.tensor(3.0)),
        lambda f, y: odds(f[:, 0], y), lambda f, y: bernoulli(f[:, 0], y),
    ),
    "binary [B]": Task(
        Binary(), Single, "layers.0", ROWS, YES.double().unsqueeze(1),
        lambda f, y: F.binary_cross_entropy_with_logits(f, y[:, 0]),
        lambda f, y: odds(f, y[:, 0]), lambda f, y: bernoulli(f, y[:, 0]),
    ),
    "multi-label": Task(
        MultiLabel(pos_weight=WEIGHTS), perceptron(3), "0", ROWS, MANY,
        lambda f, y: 3 * F.binary_cross_entropy_with_logits(f, y.double(), pos_weight=DOUBLE), odds, bernoulli,
    ),
    "segmentation": Task(
        DenseClassification(class_weights=WEIGHTS, label_smoothing=0.1, ignore_index=255), image_to_image(3), "0",
        IMAGES, MASKED, nn.CrossEntropyLoss(weight=DOUBLE, label_smoothing=0.1, ignore_index=255), picked, log(picked),
    ),
    "segmentation, soft labels": Task(
        DenseClassification(), image_to_image(3), "0", IMAGES, SOFT_PIXELS, nn.CrossEntropyLoss(), soft, log(soft),
    ),
    "tokens": Task(
        DenseClassification(ignore_index=-100), tagger(3), "0", SERIES, TOKENS, nn.CrossEntropyLoss(), picked,
        log(picked),
    ),
    "regression [B, 1]": Task(
        Regression(noise=0.7), perceptron(1), "0", ROWS, normal(8, seed=11),
        lambda mean, y: gaussian(0.7)(mean[:, 0], y), total, None,
    ),
    "regression [B]": Task(
        Regression(noise=0.7), Single, "layers.0", ROWS, normal(8, seed=11), gaussian(0.7), total, None,
    ),
    "learned noise [B, 2]": Task(
        LearnedNoiseRegression(), perceptron(2), "0", ROWS, normal(8, seed=12),
        lambda output, y: learned(-1)(output, y[:, None]), lambda output, y: output[:, 0].sum(), None,
    ),
    "regression of images": Task(
        Regression(noise=0.7), image_to_image(2), "0", IMAGES, normal(8, 2, 4, 4, seed=8), gaussian(0.7), total, None,
    ),
    "learned noise of images": Task(
        LearnedNoiseRegression(axis=-3), image_to_image(2), "0", IMAGES, normal(8, 1, 4, 4, seed=9), learned(1),
        lambda output, y: output[:, :1].sum(), None,
    ),
    "learned noise of series": Task(
        LearnedNoiseRegression(), perceptron(8, nn.Unflatten(1, (2, 4))), "0", ROWS, normal(8, 2, 2, seed=10),
        learned(-1), lambda output, y: output[..., :2].sum(), None,
    ),
}  # fmt: skip
