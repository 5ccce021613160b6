"""`load_features`: what `forde.fit` and `predict` take, from a folder of features."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forde.data.features.files import read_about, read_file
from forde.data.features.shards import first_difference
from forde.errors import FordeError, unknown_name

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Features:
    """Features of one set of samples; `forde.fit(ensemble, method, (features.x, features.y))` trains on them."""

    x: Tensor
    """`[N, Q]`, float32 unless another type was asked for."""
    y: Tensor
    """int64 `[N]`; −1 where a sample has no label."""
    about: dict[str, Any]
    """Backbone, data and settings, as `forde.data.features` describes them."""

    def __len__(self) -> int:
        return len(self.y)


def load_features(
    folder: str | os.PathLike[str], part: str = "train", *, dtype: torch.dtype = torch.float32
) -> Features:
    """One set of features: "train", "test", "corrupted/fog-3", "foreign/digits", as `feature_parts` lists them.

    >>> load_features("nowhere")
    Traceback (most recent call last):
    forde.errors.FordeError: the folder of features 'nowhere' is missing; make it with forde features.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise FordeError(f"the folder of features '{place}' is missing; make it with forde features.")
    path = place / f"{part}{SUFFIX}"
    if not path.exists():
        raise unknown_name("set of features", part, feature_parts(place))
    rows, about = read_file(path)
    _check_backbone(place, path, about)
    return Features(rows.features.to(dtype), rows.labels.long(), about)


def feature_parts(folder: str | os.PathLike[str]) -> list[str]:
    """The sets that are finished in a folder.

    >>> feature_parts("nowhere")
    []
    """
    place = Path(folder).expanduser()
    return sorted(path.relative_to(place).as_posix().removesuffix(SUFFIX) for path in _files(place))


def _files(folder: Path) -> Iterator[Path]:
    for pattern in (f"*{SUFFIX}", f"corrupted/*{SUFFIX}", f"foreign/*{SUFFIX}"):
        yield from folder.glob(pattern)


def _check_backbone(folder: Path, path: Path, about: dict[str, Any]) -> None:
    """Refuse a set whose features are of another network than the training set's beside it."""
    training = folder / f"train{SUFFIX}"
    if path == training or not training.exists():
        return
    if found := different_backbone(read_about(training), about):
        raise FordeError(
            f"'{path}' and '{training}' are features of different networks: {found[0]} is {found[2]!r} and "
            f"{found[1]!r}; make one of them again."
        )


def different_backbone(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """In what the networks of two sets of features differ, and both values; the revision is only a name."""
    first, second = ({**about["backbone"], "revision": ""} for about in (one, other))
    return first_difference(first, second)
