"""Stand-ins for principal directions: a method costs what it costs after a fit to a large data set, without the fit.

A fit to one random batch would leave as many directions as the batch has samples, and make PCA look cheap.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from forde.kernels import RBF, PrincipalDirections
from forde.kernels.metric import Spectral
from forde.methods import Method


def principal_directions(size: int, rank: int | None, device: torch.device) -> PrincipalDirections:
    """Orthonormal directions `[D, R]` of inputs of D values, with variances that fall as those of images do.

    They are columns of a reflection I − 2vvᵀ/‖v‖², which is dense, orthogonal and made at once for any D.

    >>> directions = principal_directions(5, None, torch.device("cpu")).directions
    >>> torch.allclose(directions.T @ directions, torch.eye(5, dtype=torch.float64))
    True
    """
    v = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    reflection = torch.eye(size, dtype=torch.float64, device=device)
    reflection.addr_(v, v, alpha=-2 / float(v @ v))
    variances = 1 / torch.arange(1, size + 1, dtype=torch.float64, device=device) ** 2
    return PrincipalDirections(reflection[:, :rank].clone(), variances[:rank], float(variances.sum()))


def has_directions(method: Method) -> bool:
    """Whether the method compares members along principal directions of the inputs.

    >>> from forde import method
    >>> has_directions(method("forde-pca")), has_directions(method("forde-identity"))
    (True, False)
    """
    return method.kernel is not None and method.kernel.needs_training_data


def with_directions(method: Method, size: int, device: torch.device) -> Method:
    """The method with its metric, if that needs any, fitted to stand-in directions of inputs of `size` values.

    >>> from forde import method
    >>> with_directions(method("forde-pca", rank=3), 8, torch.device("cpu")).kernel.note[:37]
    'its metric follows 3 of 8 principal d'
    """
    kernel = method.kernel
    if not isinstance(kernel, RBF) or not isinstance(kernel.metric, Spectral):
        return method
    directions = principal_directions(size, kernel.metric.rank, device)
    return replace(method, kernel=replace(kernel, metric=replace(kernel.metric, pca=directions)))
