"""The data sets that need no files: scikit-learn's digits and the two toys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from forde.data.checks import channel_statistics
from forde.data.description import Description, Images, Table


def read_built_in(description: Description, split: str) -> Images | Table:
    """A split of "digits", "regression-1d" or "classification-2d"."""
    if description.name == "digits":
        return _digits(description, split)
    from forde.data import toys

    if description.name == "regression-1d":
        x, y, features = toys.regression_1d()
        inputs = features(x)
        return _table(description, inputs, inputs, y, ("x/2", "(x/2)²"))
    points = toys.classification_2d()
    chosen = (points.x, points.y) if split == "train" else (points.x_test, points.y_test)
    return _table(description, points.x, *chosen, ("x1", "x2"))


def _digits(description: Description, split: str) -> Images:
    from forde.data.digits import digits

    data = digits()
    mean, std = channel_statistics(data.train_images[..., None])
    pair = (data.train_images, data.train_labels) if split == "train" else (data.test_images, data.test_labels)
    described = replace(description, mean=mean, std=std)
    return Images(pair[0][..., None], pair[1].numpy().astype(np.int64), described, "scikit-learn")


def _table(description: Description, training: Tensor, x: Tensor, y: Tensor, names: tuple[str, ...]) -> Table:
    mean, std = (tuple(values.tolist()) for values in (training.mean(0), training.std(0, correction=0)))
    return Table(x.numpy(), y.numpy(), names, replace(description, mean=mean, std=std), "generated")
