"""Named recipes over the axes space × kernel × rule × prior, and methods that make all members of one network.

Importing a file of this package registers its methods.
"""

from forde.methods import deep_ensemble, feature_rde, forde, lit, node_bnn, rde, swag
from forde.methods.base import Method
from forde.methods.registry import method, methods, register

__all__ = [
    "Method",
    "deep_ensemble",
    "feature_rde",
    "forde",
    "lit",
    "method",
    "methods",
    "node_bnn",
    "rde",
    "register",
    "swag",
]
