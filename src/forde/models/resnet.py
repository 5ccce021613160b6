"""Residual networks for small images, as the paper's code has them: 3×3 stem of stride 1 and no max-pooling.

ResNet18         groups of 2 blocks, widths 64/128/256/512, strides 1/2/2/2, projection shortcut in groups 2–4
PreActResNet18   the same with BatchNorm and ReLU before each convolution, and once more before the pooling
WRN16-4          stem 16, widths 64/128/256, strides 1/2/2, pre-activation, projection at the start of each group

The authors' framework pads stride-2 convolutions by (0, 1) and debiases BatchNorm's averages; torch pads (1, 1) and
does not. Neither matters for what is learned.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from forde.models.initialisation import Initialisation, initialise


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class _Block(nn.Module):
    """conv-BN-ReLU-conv-BN plus shortcut, then ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class _PreActBlock(nn.Module):
    """BN-ReLU-conv twice plus shortcut; a projection sees the pre-activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, outputs, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv(outputs, outputs, 3)
        self.projection = _conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        shortcut = x if self.projection is None else self.projection(y)
        y = self.conv1(y)
        out: Tensor = self.conv2(F.relu(self.norm2(y))) + shortcut
        return out


class ResNet(nn.Module):
    """Stem, groups of residual blocks, global mean, linear head."""

    def __init__(
        self,
        n_classes: int,
        *,
        stem: int,
        widths: Sequence[int],
        strides: Sequence[int],
        blocks: int,
        pre_activation: bool,
        channels: int,
        initialisation: Initialisation,
    ) -> None:
        super().__init__()
        self.pre_activation = pre_activation
        self.stem = _conv(channels, stem, 3)
        # Post-activation networks normalise after the stem, pre-activation ones before the pooling.
        self.norm = nn.BatchNorm2d(widths[-1] if pre_activation else stem)
        make = _PreActBlock if pre_activation else _Block
        groups: list[nn.Module] = []
        inputs = stem
        for width, stride in zip(widths, strides, strict=True):
            for index in range(blocks):
                groups.append(make(inputs, width, stride if index == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*groups)
        self.head = nn.Linear(inputs, n_classes)
        initialise(self, self.head, initialisation)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, channels, H, W]` → logits `[B, n_classes]`."""
        y = self.stem(x)
        y = F.relu(self.norm(self.blocks(y))) if self.pre_activation else self.blocks(F.relu(self.norm(y)))
        logits: Tensor = self.head(y.mean((-2, -1)))
        return logits


def resnet18(n_classes: int, *, channels: int = 3, initialisation: Initialisation = "he") -> ResNet:
    """ResNet18 for small images (11.2 million parameters), the paper's CIFAR network.

    >>> import torch
    >>> resnet18(10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return ResNet(
        n_classes, stem=64, widths=(64, 128, 256, 512), strides=(1, 2, 2, 2), blocks=2, pre_activation=False,
        channels=channels, initialisation=initialisation,
    )  # fmt: skip


def preact_resnet18(n_classes: int, *, channels: int = 3, initialisation: Initialisation = "he") -> ResNet:
    """PreActResNet18 (11.2 million parameters), the paper's TinyImageNet network.

    >>> import torch
    >>> preact_resnet18(200)(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 200])
    """
    return ResNet(
        n_classes, stem=64, widths=(64, 128, 256, 512), strides=(1, 2, 2, 2), blocks=2, pre_activation=True,
        channels=channels, initialisation=initialisation,
    )  # fmt: skip


def wrn16_4(n_classes: int, *, channels: int = 3, initialisation: Initialisation = "he") -> ResNet:
    """WRN16-4 (2.7 million parameters), used for the paper's ensemble-size curves.

    >>> import torch
    >>> wrn16_4(10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return ResNet(
        n_classes, stem=16, widths=(64, 128, 256), strides=(1, 2, 2), blocks=2, pre_activation=True,
        channels=channels, initialisation=initialisation,
    )  # fmt: skip
