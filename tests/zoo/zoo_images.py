"""Networks for images and signals: convolutions of every kind, blocks of well-known architectures, normalisation."""

from __future__ import annotations

import torch
from animals import CLASSES, Residual, Then, add, floats, head
from torch import Tensor, nn
from torch.nn import functional as F

S = nn.Sequential
IMAGE = floats(2, 6, 6)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, LayerNorm over channels, a wide perceptron with GELU, layer scale."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.5 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = S(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 2, 1), nn.SiLU(), nn.Conv2d(2, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


def mbconv(width: int = 3) -> nn.Module:
    wide = 2 * width
    return Residual(
        nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
        nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
        SqueezeExcite(wide),
        nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
    )  # fmt: skip


class DenseBlock(nn.Module):
    """Each layer reads what all before it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            S(nn.BatchNorm2d(2 + 2 * i), nn.ReLU(), nn.Conv2d(2 + 2 * i, 2, 3, padding=1)) for i in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


class RMSNormByHand(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class UNet(nn.Module):
    """Down, up by bilinear interpolation, and the skip beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, 2, 1)
        self.last = nn.Conv2d(7, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.softplus(self.first(x))
        y = F.interpolate(F.silu(self.down(x)), scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(torch.cat([x, y], 1))


def plain(*layers: nn.Module) -> nn.Module:
    """Convolution, the layers on 4 channels, activation and head."""
    return S(nn.Conv2d(2, 4, 3, padding=1), *layers, nn.Tanh(), head(4))


add("perceptron", lambda: S(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, CLASSES)), floats(5), part=True)
add(
    "perceptron with BatchNorm",
    lambda: S(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, CLASSES)),
    floats(5),
    method="forde-pca",
    part=True,
)
add(
    "convolutions with BatchNorm",
    lambda: plain(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1)),
    IMAGE,
    method="forde-pca, log_prob",
    part=True,
)
add(
    "convolutions with BatchNorm under function-RDE",
    lambda: plain(nn.BatchNorm2d(4)),
    IMAGE,
    method="function-rde",
    part=True,
)
add("convolutions with BatchNorm under weight-RDE", lambda: plain(nn.BatchNorm2d(4)), IMAGE, method="weight-rde")
add("convolutions with BatchNorm, deep ensemble", lambda: plain(nn.BatchNorm2d(4)), IMAGE, method="deep-ensemble")
add("BatchNorm(momentum=None)", lambda: plain(nn.BatchNorm2d(4, momentum=None)), IMAGE, part=True)
add("BatchNorm without running statistics", lambda: plain(nn.BatchNorm2d(4, track_running_stats=False)), IMAGE)
add("BatchNorm without scale and shift", lambda: plain(nn.BatchNorm2d(4, affine=False)), IMAGE, part=True)
add("GroupNorm", lambda: plain(nn.GroupNorm(2, 4)), IMAGE, part=True)
add("InstanceNorm", lambda: plain(nn.InstanceNorm2d(4, affine=True)), IMAGE)
add(
    "InstanceNorm with running statistics",
    lambda: plain(nn.InstanceNorm2d(4, track_running_stats=True)),
    IMAGE,
    part=True,
)
add(
    "LayerNorm",
    lambda: S(nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, CLASSES)),
    floats(5),
    method="forde-identity, log_prob",
    part=True,
)
add("RMSNorm", lambda: S(nn.Linear(5, 7), nn.RMSNorm(7), nn.Tanh(), nn.Linear(7, CLASSES)), floats(5))
add("RMSNorm by hand", lambda: S(nn.Linear(5, 7), RMSNormByHand(7), nn.SiLU(), nn.Linear(7, CLASSES)), floats(5))
add("local response normalisation", lambda: plain(nn.LocalResponseNorm(2)), IMAGE)
add(
    "ConvNeXt block",
    lambda: S(nn.Conv2d(2, 4, 2, 2), ConvNeXtBlock(), head(4)),
    IMAGE,
    method="forde-pca, log_prob",
)
add(
    "MBConv block (depthwise, squeeze-excite)",
    lambda: S(nn.Conv2d(2, 3, 3, padding=1), mbconv(), head(3)),
    IMAGE,
)
add("DenseNet block", lambda: S(DenseBlock(), head(6)), IMAGE, method="forde-identity, log_prob", part=True)
add("U-Net with bilinear upsampling", lambda: S(UNet(), head(3)), IMAGE)
add(
    "1D convolutions",
    lambda: S(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 4, 2), head(4)),
    floats(2, 8),
    method="forde-pca",
    part=True,
)
add(
    "3D convolutions",
    lambda: S(nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.ELU(), nn.Conv3d(3, 3, 2, 2), head(3)),
    floats(1, 4, 4, 4),
    part=True,
)
add(
    "transposed convolutions", lambda: S(nn.ConvTranspose2d(2, 4, 3, 2, 1, 1), nn.Softplus(), head(4)), IMAGE, part=True
)
add(
    "transposed 1D and 3D convolutions",
    lambda: S(
        nn.ConvTranspose1d(2, 4, 3, 2), nn.Unflatten(2, (1, 3, 3)), nn.SiLU(), nn.ConvTranspose3d(4, 2, 2), head(2)
    ),
    floats(2, 4),
)
add(
    "grouped convolutions",
    lambda: S(nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Conv2d(4, 8, 3, groups=4), head(8)),
    IMAGE,
    part=True,
)
add(
    "dilated convolutions",
    lambda: plain(nn.ReLU(), nn.Conv2d(4, 4, 3, dilation=2, padding=2)),
    IMAGE,
    method="forde-pca",
)
add(
    "padding by reflection, in circles and by copies",
    lambda: S(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
        nn.Tanh(),
        nn.Conv2d(3, 3, 3, padding="same", padding_mode="circular"),
        nn.ReplicationPad2d(1),
        nn.Tanh(),
        head(3),
    ),
    IMAGE,
)
add("max pooling", lambda: plain(nn.MaxPool2d(2), nn.Conv2d(4, 4, 2)), IMAGE, part=True)
add(
    "ties in max pooling",
    lambda: S(nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(2, 4, 2), nn.Tanh(), head(4)),
    lambda batch, g: torch.randint(-1, 2, (batch, 2, 6, 6), generator=g).double(),
)
add("adaptive pooling", lambda: plain(nn.AdaptiveMaxPool2d(3), nn.Tanh(), nn.AdaptiveAvgPool2d(2)), IMAGE, part=True)
add("average and power-average pooling", lambda: plain(nn.AvgPool2d(2), nn.Softplus(), nn.LPPool2d(2, 2)), IMAGE)
add(
    "pixel shuffle",
    lambda: S(nn.Conv2d(2, 8, 3, padding=1), nn.PixelShuffle(2), nn.SiLU(), nn.PixelUnshuffle(3), head(18)),
    IMAGE,
)
add(
    "upsampling (nearest, bicubic)",
    lambda: plain(nn.Upsample(scale_factor=2), nn.SiLU(), nn.Upsample(scale_factor=0.5, mode="bicubic")),
    IMAGE,
)
add(
    "hardswish and hardsigmoid under FoRDE",
    lambda: plain(nn.Hardswish(), nn.Conv2d(4, 4, 1), nn.Hardsigmoid()),
    IMAGE,
    refused=True,
)
add(
    "hardswish and hardsigmoid, deep ensemble",
    lambda: plain(nn.Hardswish(), nn.Conv2d(4, 4, 1), nn.Hardsigmoid()),
    IMAGE,
    method="deep-ensemble",
)
add(
    "PReLU, CELU, Mish, Softsign, GLU",
    lambda: S(
        nn.Linear(5, 8),
        nn.PReLU(8),
        nn.CELU(),
        nn.Linear(8, 8),
        nn.Mish(),
        nn.Softsign(),
        nn.GLU(),
        nn.Linear(4, CLASSES),
    ),
    floats(5),
)
add("random ReLU slopes (RReLU)", lambda: S(nn.Linear(5, 8), nn.RReLU(), nn.Linear(8, CLASSES)), floats(5), random=True)
add(
    "dropout",
    lambda: S(nn.Linear(5, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, CLASSES)),
    floats(5),
    random=True,
    part=True,
)
add("dropout of channels", lambda: plain(nn.Dropout2d(0.5), nn.ReLU(), nn.Conv2d(4, 4, 1)), IMAGE, random=True)
add(
    "alpha dropout and SELU",
    lambda: S(nn.Linear(5, 9), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(9, CLASSES)),
    floats(5),
    random=True,
)
add(
    "Gaussian noise on activations",
    lambda: S(nn.Linear(5, 9), Then(lambda x: x + 0.3 * torch.randn_like(x)), nn.Tanh(), nn.Linear(9, CLASSES)),
    floats(5),
    random=True,
)
add(
    "channels_last",
    lambda: plain(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)).to(memory_format=torch.channels_last),
    lambda batch, g: IMAGE(batch, g).contiguous(memory_format=torch.channels_last),
)
