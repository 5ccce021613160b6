"""What the members of a run see of data in its own units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from forde.data.description import Images, Table
from forde.data.inputs import Transform, normalise
from forde.ensemble import Ensemble
from forde.errors import FordeError, missing_column
from forde.prediction import Prediction
from forde.training.trained import TrainedRun

BATCH = 512
"""Samples predicted at once."""


def inputs_of(run: TrainedRun, data: Images | Table) -> tuple[Transform, np.ndarray]:
    """What the cells hold, and how a batch of it becomes the members' input."""
    if isinstance(data, Images):
        if run.inputs.standardisation is not None:
            raise FordeError("the run was trained on a table, but images were given; give rows of that table.")
        shape = tuple(data.images.shape[1:])
        if shape != run.inputs.shape:
            raise FordeError(
                f"the images of '{data.description.name}' have shape {list(shape)}, but the run was trained on "
                f"{list(run.inputs.shape)}; give images of that size."
            )
        if run.inputs.are_images:  # as the members were trained, whatever the statistics of these images
            return partial(run.inputs.normalised, dtype=run.ensemble.dtype), data.images
        return normalise(data.description.mean, data.description.std, run.ensemble.dtype), data.images
    if run.inputs.standardisation is None:
        raise FordeError("the run was trained on images, but a table was given; give images.")
    return _as_it_is, run.inputs.standardisation.inputs(rows_in_order(run, data))


def predicted(ensemble: Ensemble, inputs: Tensor) -> Prediction:
    """Of inputs `[N, ...]` that are in the networks' units already, batch by batch."""
    return ensemble.predict(iter(inputs.split(BATCH)))


def rows_in_order(run: TrainedRun, table: Table) -> np.ndarray:
    """The columns that the run was trained on, in their order, `[N, D]`."""
    place = {name: number for number, name in enumerate(table.feature_names)}
    for name in run.inputs.features:
        if name not in place:
            raise missing_column(f"'{table.description.name}'", name, place)
    return table.x[:, [place[name] for name in run.inputs.features]]


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def labels_of(data: Images | Table) -> np.ndarray:
    """Classes or quantities `[N]`."""
    return data.labels if isinstance(data, Images) else data.y


def to_units(run: TrainedRun) -> Callable[[Any], Any]:
    """From predictions in standard units to those in units of the target."""
    assert run.inputs.standardisation is not None
    return run.inputs.standardisation.undo


def refuse_other_classes(run: TrainedRun, data: Images | Table) -> None:
    """The error where the data's target is not what the run predicts."""
    described, recipe = data.description, run.inputs
    if bool(described.n_classes) != bool(recipe.n_classes):
        kinds = ("a class", "a quantity") if recipe.n_classes else ("a quantity", "classes")
        raise FordeError(
            f"the run predicts {kinds[0]}, but the target of '{described.name}' is {kinds[1]}; name the column with "
            f"--target{' ' + repr(recipe.target) if recipe.target else ''}, or give --task."
        )
    if recipe.classes and described.classes and recipe.classes != described.classes:
        extra = sorted(set(described.classes) ^ set(recipe.classes))
        raise FordeError(
            f"the classes of '{described.name}' are not those that the run was trained on"
            f"{f': {extra[0]!r} is in only one of them' if extra else ', they are in another order'}; give data with "
            "the same classes."
        )
