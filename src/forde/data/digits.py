"""scikit-learn's handwritten digits: 1,797 real grey images of 8×8, shipped with the package, so no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Digits:
    """Images as bytes, so that corruptions apply to them as to any image; `scaled` makes network inputs."""

    train_images: np.ndarray
    """uint8 `[N, 8, 8]`."""
    train_labels: Tensor
    """`[N]`."""
    test_images: np.ndarray
    """uint8 `[T, 8, 8]`."""
    test_labels: Tensor
    """`[T]`."""

    def scaled(self, images: np.ndarray) -> Tensor:
        """Network inputs `[N, 64]`: mean 0 and variance 1 over all training pixels, as channels are normalised."""
        mean, std = float(self.train_images.mean()), float(self.train_images.std())
        return torch.from_numpy((images.reshape(len(images), -1).astype(np.float32) - mean) / std)


def digits(seed: int = 0) -> Digits:
    """Half of the digits for training, half for testing, split at random.

    >>> digits().train_images.shape
    (898, 8, 8)
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    a, b, c, d = train_test_split(images, data.target, test_size=0.5, random_state=seed, stratify=data.target)
    return Digits(a, torch.from_numpy(c), b, torch.from_numpy(d))
