"""What of two members is compared: weights, outputs, features or input gradients."""

from forde.spaces.base import FeatureLayer, Projection, Space, View
from forde.spaces.features import Features
from forde.spaces.input_gradients import InputGradients
from forde.spaces.outputs import Outputs
from forde.spaces.weights import Weights

__all__ = ["FeatureLayer", "Features", "InputGradients", "Outputs", "Projection", "Space", "View", "Weights"]
