"""The loss of a prediction that ignores its input: what any training should get below."""

from __future__ import annotations

import math

import numpy as np

from forde.likelihoods import VARIANCE_FLOOR

FAR = 0.5
"""Nats by which a loss is far above the constant prediction's: what is right is then less than 61 % as likely."""


def constant_loss(y: np.ndarray, n_classes: int) -> float:
    """Mean −log p of the best constant prediction of `y [N]`, in nats.

    For classes their frequencies f: Σ_c −f_c ln f_c. For a quantity (n_classes 0) the Gaussian of its mean and variance
    v: ½ ln 2πv + ½.

    >>> round(constant_loss(np.array([0, 1, 0, 1]), 2), 4), round(constant_loss(np.array([-1.0, 1.0]), 0), 4)
    (0.6931, 1.4189)
    """
    if n_classes:
        frequencies = np.bincount(y, minlength=n_classes) / len(y)
        present = frequencies[frequencies > 0]
        return float(-(present * np.log(present)).sum())
    variance = float(np.var(y, dtype=np.float64))
    floored = max(variance, VARIANCE_FLOOR)
    return 0.5 * math.log(2 * math.pi * floored) + 0.5 * variance / floored


def far_above(loss: float, constant: float) -> bool:
    """Whether a loss tells that training has failed; one that is not a number does too.

    >>> far_above(2.0, 1.4), far_above(1.5, 1.4), far_above(math.nan, 1.4)
    (True, False, True)
    """
    return not loss <= constant + FAR
