"""Tables in units that networks train well in: every column with mean 0 and standard deviation 1.

    x' = (x − mean) / scale,   mean and scale = standard deviation over the training rows

The same statistics are applied to every later row and undone in predictions, so they are kept beside the ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from typing import Any

import numpy as np

from forde.data.checks import check_finite
from forde.data.description import Table
from forde.data.rows import GIVEN, in_words
from forde.errors import FordeError
from forde.prediction import Prediction, RegressionPrediction


@dataclass(frozen=True)
class Standardisation:
    """Statistics of the training rows: of D features, and of the target where it is a quantity.

    >>> from forde.data import load
    >>> table = load("regression-1d")
    >>> units = Standardisation.of(table)
    >>> float(units.apply(table).y.std().round(3))
    1.0
    >>> Standardisation.from_json(units.to_json()) == units
    True
    """

    mean: tuple[float, ...]
    """D means."""
    scale: tuple[float, ...]
    """D standard deviations; 1 for a column that is constant."""
    target_mean: float | None = None
    """None where the target is a class."""
    target_scale: float | None = None

    @classmethod
    def of(cls, table: Table) -> Standardisation:
        """The statistics of these rows, in float64."""
        mean, scale = _statistics(table.x)
        features = cls(tuple(mean.tolist()), tuple(scale.tolist()))
        if table.description.n_classes:
            return features
        centre, spread = _statistics(table.y)
        return replace(features, target_mean=float(centre), target_scale=float(spread))

    def apply(self, table: Table) -> Table:
        """The table in standard units; classes stay as they are."""
        y = table.y
        if self.target_mean is not None and self.target_scale is not None:
            y = ((y.astype(np.float64) - self.target_mean) / self.target_scale).astype(np.float32)
        if isinstance(table, StandardTable):
            raise FordeError("the table is standardised already; give it in its own units.")
        own = {field.name: getattr(table, field.name) for field in fields(Table)}
        return StandardTable(**{**own, "x": self.inputs(table.x), "y": y}, units=self)

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Rows `[N, D]` in their own units → float32 `[N, D]` in standard ones.

        >>> Standardisation((10.0, 0.0), (2.0, 1.0)).inputs(np.array([[12, 3]]))
        array([[1., 3.]], dtype=float32)
        """
        if x.ndim != 2 or x.shape[1] != len(self.mean):
            width = len(self.mean)
            single = f"reshape a single row to [1, {width}]"
            raise FordeError(
                f"the rows have shape {list(x.shape)}, but [N, {width}] was expected; "
                f"{single if x.shape == (width,) else 'give the features that the ensemble was trained with'}."
            )
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            return ((x.astype(np.float64) - self.mean) / self.scale).astype(np.float32)

    def rows(self, x: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """As `inputs`, for rows that somebody gives: a missing or infinite value is named by column and row."""
        standard = self.inputs(x)
        check_finite(standard, names, GIVEN, in_words)
        return standard

    def undo(self, prediction: Prediction) -> Prediction:
        """A prediction of the standardised target in the target's own units; one of classes stays as it is."""
        if self.target_mean is None or self.target_scale is None:
            return prediction
        if not isinstance(prediction, RegressionPrediction):
            raise FordeError(
                "the target was standardised, but only your own loss knows what the outputs mean; give rows that are "
                "standardised already, and undo it in the outputs."
            )
        return prediction.rescaled(self.target_mean, self.target_scale)

    def to_json(self) -> dict[str, Any]:
        """Lists and numbers, from which `from_json` makes the same again to the last bit."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Any) -> Standardisation:
        """Inverse of `to_json`, for a file that anybody may have written."""
        if not _is_valid(value):
            raise FordeError("the statistics by which the table was standardised are damaged; train again.")
        return cls(tuple(value["mean"]), tuple(value["scale"]), value.get("target_mean"), value.get("target_scale"))


@dataclass(frozen=True)
class StandardTable(Table):
    """A table whose features, and a target that is a quantity, are in standard units."""

    units: Standardisation = field(kw_only=True)
    """By which it was brought there."""


def _statistics(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the rows `[N, ...]`; a constant column has scale 1, and exactly its own mean."""
    constant = values.max(0) == values.min(0)  # the deviation need not be 0: the mean of equal numbers is rounded
    mean = np.where(constant, values[0], values.mean(0, np.float64)).astype(np.float64)
    return mean, np.where(constant, 1.0, values.astype(np.float64).std(0))


def _is_valid(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(value.get(key), list) for key in ("mean", "scale")):
        return False
    target = (value.get("target_mean"), value.get("target_scale"))
    pairs = [*zip(value["mean"], value["scale"], strict=False), *([] if target == (None, None) else [target])]
    return len(value["mean"]) == len(value["scale"]) and all(
        _is_number(mean) and _is_number(scale) and scale > 0 for mean, scale in pairs
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)
