"""The 19 common corruptions of ImageNet-C and CIFAR-10-C at 5 severities, for numpy arrays and torch tensors.

>>> import numpy as np
>>> from forde.corruptions import NAMES, corrupt
>>> images = np.zeros((2, 32, 32, 3), np.uint8)
>>> corrupt(images, "fog", severity=3).shape
(2, 32, 32, 3)
"""

from forde.corruptions.api import apply, corrupt, draw
from forde.corruptions.constants import CONSTANTS, NAMES, PRESETS, SEVERITIES, preset_for
from forde.corruptions.sets import corrupt_all
from forde.corruptions.textures import frost_folder, frost_name

VERSION = 1
"""Part of the names of generated files: raise it when a corruption gives other images than before."""

__all__ = [
    "CONSTANTS",
    "NAMES",
    "PRESETS",
    "SEVERITIES",
    "VERSION",
    "apply",
    "corrupt",
    "corrupt_all",
    "draw",
    "frost_folder",
    "frost_name",
    "preset_for",
]
