"""Networks of the paper: residual networks for small images and the MLP."""

from forde.models.building import MODELS
from forde.models.mlp import MLP
from forde.models.resnet import ResNet, preact_resnet18, resnet18, wrn16_4

__all__ = ["MLP", "MODELS", "ResNet", "preact_resnet18", "resnet18", "wrn16_4"]
