"""New inputs without targets, as an ensemble that is trained already takes them: rows, images in files or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forde.data.arrays import read_npz_inputs
from forde.data.catalogue import CATALOGUE
from forde.data.class_folders import is_image, read_files
from forde.data.description import Images, Table
from forde.data.known_inputs import Inputs
from forde.data.locating import Folder
from forde.data.matching import matching
from forde.data.tables import SUFFIXES, read_known_columns
from forde.errors import FordeError

MOST_FILES = 1_000_000


class Unlabelled(NamedTuple):
    """New inputs, and what to call each."""

    x: Images | Table | np.ndarray
    """What `TrainedRun.predict` takes; images as bytes `[N, H, W, C]`."""
    names: Sequence[str]
    """Files of the images `[N]`; empty where samples are known by their place alone."""


def read_unlabelled(inputs: Inputs, source: str, data_dir: Folder | None = None) -> Unlabelled:
    """New inputs from a CSV or Parquet file, a `.npz` file, an image, a folder of images, or a data set by name.

    Columns are found by name, and others are not looked at. A target may be there; it is not looked at either.

    Args:
        inputs: what the ensemble knows.

    >>> from forde.data import load
    >>> digits = load("digits")
    >>> read_unlabelled(Inputs.of(digits), "digits").x.images.shape
    (899, 8, 8, 1)
    """
    path = Path(source).expanduser()
    if source in CATALOGUE:
        return Unlabelled(matching(inputs, source, None, data_dir), ())
    if not path.exists():
        raise FordeError(f"'{source}' does not exist; give a file, a folder of images, or a data set by name.")
    suffix = path.suffix.lower()
    if path.is_file() and suffix in SUFFIXES and inputs.features:
        return Unlabelled(read_known_columns(path, inputs.features, None, encoding=inputs.encoding), ())
    files = _image_files(path)
    if inputs.features:
        what = "holds images" if files else "is no table"
        raise FordeError(f"'{source}' {what}, but the run was trained on a table; give a .csv or .parquet file.")
    if files:
        shape = inputs.shape or None
        images = read_files(files, to_colour=bool(shape) and inputs.shape[2] == 3, shape=shape)
        return Unlabelled(images, [str(file.relative_to(path) if path.is_dir() else file.name) for file in files])
    if suffix == ".npz":
        return Unlabelled(read_npz_inputs(path), ())
    if path.is_file() and suffix in SUFFIXES:
        return Unlabelled(_images_of_parquet(inputs, path), ())
    raise FordeError(
        f"'{source}' holds no images; give a folder of images, an image, or a .npz file of bytes, as the run was "
        "trained on images."
    )


def _image_files(path: Path) -> list[Path]:
    """An image, or all below a folder, in the order of their names."""
    if path.is_file():
        return [path] if is_image(path) else []
    found = [file for file in sorted(path.rglob("*")) if is_image(file)]
    if len(found) > MOST_FILES:
        raise FordeError(f"'{path}' holds {len(found):,} images, but {MOST_FILES:,} are the most; take them in parts.")
    return found


def _images_of_parquet(inputs: Inputs, path: Path) -> Images | Table:
    if path.suffix.lower() == ".csv":
        raise FordeError(
            f"'{path}' is a table, but the run was trained on images; give a folder of images, an image, or a .npz "
            "file of bytes."
        )
    return matching(inputs, path)
