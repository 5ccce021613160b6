"""Networks of the paper: residual networks for small images and the MLP."""

from forde.models.mlp import MLP
from forde.models.resnet import ResNet, preact_resnet18, resnet18, wrn16_4

__all__ = ["MLP", "ResNet", "preact_resnet18", "resnet18", "wrn16_4"]
