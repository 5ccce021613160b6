"""What an ensemble knows of its inputs: their shape, the units of its networks, and the names of classes and columns.

One rule says what is prepared. Data that say what they are (`forde.data.Images`, bytes, a `Table`, a data frame with
names of columns) are in units of their own and are brought into the networks'; floating-point tensors, arrays and
loaders are what networks take already, and pass as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde.data.description import Images, Table
from forde.data.encoding import Encoding
from forde.data.inputs import Transform, normalise
from forde.data.rows import in_order
from forde.data.standardise import Standardisation, StandardTable
from forde.errors import FordeError

log = logging.getLogger(__name__)

MOST = 1 << 31
"""Below which every size in a file must be."""


@dataclass(frozen=True)
class Inputs:
    """Of images or of rows; whatever is left out is unknown.

    >>> from forde.data import load
    >>> inputs = Inputs.of(load("digits"))
    >>> inputs.shape, inputs.classes[3], Inputs.from_json(inputs.to_json()) == inputs
    ((8, 8, 1), '3', True)
    """

    shape: tuple[int, ...] = ()
    """`(H, W, C)` of an image or `(D,)` of a row."""
    mean: tuple[float, ...] = ()
    """Of each channel on the scale 0..1, taken from bytes before a network sees them."""
    std: tuple[float, ...] = ()
    """Of each channel; bytes are divided by it."""
    n_classes: int = 0
    """0 for a quantity."""
    classes: tuple[str, ...] = ()
    """Names in the order of the labels."""
    features: tuple[str, ...] = ()
    """Columns of a table in the order of the networks' inputs."""
    target: str = ""
    """The column of a table that is predicted."""
    standardisation: Standardisation | None = None
    """Of a table; None where networks see rows in their own units."""
    encoding: Encoding | None = None
    """How text and gaps of a table became numbers; None where it had none."""

    def __post_init__(self) -> None:
        statistics = (*self.mean, *self.std)
        if len(self.mean) != len(self.std) or not all(map(isfinite, statistics)) or min(self.std, default=1) <= 0:
            raise FordeError(
                f"the normalisation has mean {self.mean} and std {self.std}, but a number for each channel, of std "
                "above 0, was expected."
            )
        if self.mean and self.shape and self.shape[2:] != (len(self.mean),):
            raise FordeError(
                f"the normalisation is of {len(self.mean)} channels, but the shape of an image is {list(self.shape)}; "
                "give [H, W, C]."
            )

    @classmethod
    def of(cls, data: Images | Table, known: Inputs | None = None) -> Inputs:
        """Those of a network that is trained on this data; one that knew a normalisation keeps it."""
        told = data.description
        own = cls(tuple(told.shape), n_classes=told.n_classes, classes=tuple(told.classes))
        if isinstance(data, Images):
            source = known if known is not None and known.mean else told
            return replace(own, mean=tuple(source.mean), std=tuple(source.std))
        units = data.units if isinstance(data, StandardTable) else None
        return replace(
            own, features=data.feature_names, target=data.target_name, standardisation=units, encoding=data.encoding
        )

    @property
    def are_images(self) -> bool:
        """Whether bytes are normalised."""
        return bool(self.mean)

    def normalised(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bytes `[B, H, W, C]`, or `[B, H, W]` of one channel → `[B, C, H, W]` as the networks see them.

        >>> Inputs(mean=(0.5,), std=(0.25,)).normalised(torch.full((1, 2, 2), 255, dtype=torch.uint8)).shape
        torch.Size([1, 1, 2, 2])
        """
        self._check_shape(tuple(images.shape[1:]))
        return _transform(self.mean, self.std, dtype)(images)

    def prepared(self, x: Any) -> tuple[Any, Standardisation | None]:
        """Data in units of their own → what networks take, and the units in which to state predictions, if others.

        Everything else passes as it is; bytes are for `normalised`, batch by batch.
        """
        if isinstance(x, Images):
            if self.features:
                raise FordeError("the ensemble was trained on a table, but images were given; give rows of that table.")
            return (self._like_training(x) if self.are_images else x), None
        named = isinstance(x, Table) or (hasattr(x, "columns") and hasattr(x, "__array__"))
        if not self.features or not named:
            if named and self.are_images:
                raise FordeError("the ensemble was trained on images, but a table was given; give images.")
            if self.standardisation is not None and _are_rows(x):
                log.warning(
                    "rows without names of columns are taken to be standardised already; give a forde.data.Table or a "
                    "data frame, or call forde.load_run(...).predict, for rows in their own units."
                )
            return x, None
        if isinstance(x, StandardTable):
            if x.units != self.standardisation:
                raise FordeError(
                    "the table was standardised by other statistics than those of the training data; give it in its "
                    "own units."
                )
            return x.x, None
        if self.standardisation is None:
            return self._in_order(x), None
        return self.rows(x), self.standardisation

    def rows(self, x: Any) -> np.ndarray:
        """Rows in their own units, columns by name or in the order of `features` → `[N, D]` as networks see them."""
        values = self._in_order(x)
        return values if self.standardisation is None else self.standardisation.rows(values, self.features)

    def _in_order(self, x: Any) -> np.ndarray:
        if isinstance(x, Table) and x.encoding is not None and x.encoding != self.encoding:
            raise FordeError(
                "text and gaps of the table were made numbers by what that file holds, and not as in training; give a "
                "data frame, or name the file to forde predict."
            )
        if self.encoding is not None and not isinstance(x, Table) and hasattr(x, "columns"):
            return self.encoding.of_frame(x)
        return in_order(x, self.features)

    def _like_training(self, images: Images) -> Images:
        self._check_shape(tuple(images.images.shape[1:]))
        told = images.description
        if (tuple(told.mean), tuple(told.std)) != (self.mean, self.std):
            log.info("images are normalised as those of training were, and not by statistics of their own")
        return replace(images, description=replace(told, mean=self.mean, std=self.std))

    def _check_shape(self, found: tuple[int, ...]) -> None:
        expected = self.shape or (*found[:2], len(self.mean))
        if found not in (expected, expected[:2] if expected[2:] == (1,) else expected):
            raise FordeError(
                f"the images have shape {list(found)}, but bytes of shape {list(expected)} (height, width, channels) "
                "were expected, as the ensemble was trained on; resize them or move the axes."
            )

    def without_normalisation(self) -> Inputs:
        """What is left where the statistics of channels are not told."""
        return replace(self, mean=(), std=())

    def to_json(self) -> dict[str, Any]:
        """Lists, text and numbers, from which `from_json` makes the same again."""
        units = None if self.standardisation is None else self.standardisation.to_json()
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        plain.pop("encoding")
        encoding = {} if self.encoding is None else {"encoding": self.encoding.to_json()}
        return {**plain, "standardisation": units, **encoding}

    @classmethod
    def from_json(cls, value: Any) -> Inputs:
        """Inverse of `to_json`, for a file that anybody may have written."""
        if not isinstance(value, Mapping) or not _is_valid(value):
            raise FordeError("the description of the inputs is damaged or of another version; save the ensemble again.")
        fields: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
        if value["standardisation"] is not None:
            fields["standardisation"] = Standardisation.from_json(value["standardisation"])
        if "encoding" in value:
            fields["encoding"] = Encoding.from_json(value["encoding"])
            if fields["encoding"].names != fields["features"]:
                raise FordeError("the description of the table's columns does not fit its features; train again.")
        inputs = cls(**fields)
        if inputs.standardisation is not None and (len(inputs.standardisation.mean),) != inputs.shape:
            raise FordeError("the statistics of the table do not fit its number of features; train again.")
        return inputs


def _are_rows(x: Any) -> bool:
    """Whether it is one tensor, array or list of rows; a list of batches is from somebody who knows what they are."""
    return hasattr(x, "__array__") or (isinstance(x, list) and not (x and isinstance(x[0], Tensor)))


@cache  # it keeps its constants on each device
def _transform(mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype) -> Transform:
    return normalise(mean, std, dtype)


def _is_valid(value: Mapping[str, Any]) -> bool:
    names, numbers = (value.get("classes"), value.get("features")), (value.get("mean"), value.get("std"))
    shape = value.get("shape")
    return (
        set(value) | {"encoding"} == set(Inputs.__dataclass_fields__)
        and isinstance(shape, list)
        and all(type(size) is int and 0 < size < MOST for size in shape)
        and all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in names)
        and all(isinstance(each, list) and all(type(one) in (int, float) for one in each) for each in numbers)
        and type(value["n_classes"]) is int
        and 0 <= value["n_classes"] < MOST
        and isinstance(value["target"], str)
        and (not value["features"] or (len(shape) == 1 and len(value["features"]) == shape[0]))
        and (value["standardisation"] is None or bool(value["features"]))
    )
