"""How similar two members are: RBF with a metric, squared cosine, and kernels on the sphere."""

from forde.kernels.base import Kernel, Similarity
from forde.kernels.cosine import SquaredCosine
from forde.kernels.metric import PCA, Identity, Metric, Tuned
from forde.kernels.pca import PrincipalDirections, fit_pca
from forde.kernels.rbf import RBF, Bandwidth, Fixed, Median
from forde.kernels.sphere import InverseMultiquadric, Laplace, VonMisesFisher

__all__ = [
    "PCA",
    "RBF",
    "Bandwidth",
    "Fixed",
    "Identity",
    "InverseMultiquadric",
    "Kernel",
    "Laplace",
    "Median",
    "Metric",
    "PrincipalDirections",
    "Similarity",
    "SquaredCosine",
    "Tuned",
    "VonMisesFisher",
    "fit_pca",
]
