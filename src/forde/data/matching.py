"""Data for an ensemble that is trained already: its classes get the numbers, its columns the order of training."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from forde.data.description import Images, Table
from forde.data.known_inputs import Inputs
from forde.data.loading import load
from forde.data.locating import Folder
from forde.data.rows import in_order
from forde.data.tables import SUFFIXES, read_known_columns, table_files
from forde.errors import FordeError, unknown_name

log = logging.getLogger(__name__)


def matching(
    inputs: Inputs, data: Folder, split: str | None = None, data_dir: Folder | None = None, *, own: bool = False
) -> Images | Table:
    """A split of a data set, with the targets that the ensemble was trained on.

    Args:
        inputs: what the ensemble knows.
        data: as for `load`.
        split: `"test"` if left out.
        own: whether it is the data that the ensemble was trained on, whose training split is no test.

    >>> digits = load("digits")
    >>> len(matching(Inputs.of(digits), "digits"))
    899
    """
    path = Path(os.fspath(data)).expanduser()
    if inputs.features and _is_table(path):
        return _table(inputs, path, split, own=own)
    try:
        found = load(data, split or "test", data_dir)
    except FordeError as error:
        if split is not None or not (error.unknown or "").startswith("split of"):
            raise
        if own:
            raise _no_test(data) from None
        log.warning("'%s' has no test split; all of it is used", data)
        found = load(data, "train", data_dir)
    if isinstance(found, Images) == bool(inputs.features):
        raise FordeError(
            f"'{data}' is a table, but the ensemble was trained on images; name a data set of images."
            if inputs.features == ()
            else f"'{data}' holds images, but the ensemble was trained on a table; name a table."
        )
    if isinstance(found, Images):
        if inputs.shape and found.images.shape[1:] != inputs.shape:
            raise FordeError(
                f"the images in '{data}' have shape {list(found.images.shape[1:])}, but {list(inputs.shape)} was "
                "expected, as the ensemble was trained on; resize them, or name other data."
            )
        return replace(found, labels=_renumbered(found.labels, found.description.classes, inputs.classes, str(data)))
    x = in_order(found, inputs.features).astype(np.float32)
    y = found.y
    if inputs.n_classes:
        y = _renumbered(y, found.description.classes, inputs.classes, str(data))
    return replace(found, x=x, y=y, feature_names=inputs.features)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES if path.is_file() else path.is_dir() and bool(table_files(path))


def _table(inputs: Inputs, path: Path, split: str | None, *, own: bool) -> Table:
    """A CSV or Parquet file, of which only the columns of training are looked at."""
    files = table_files(path)
    wanted = split or "test"
    if wanted not in files and own:
        raise _no_test(path)
    if wanted not in files and split is not None:
        raise unknown_name(f"split of '{path}'", split, files)
    if wanted not in files and path.is_dir():
        log.warning("'%s' has no test split; all of it is used", path)
    file = files.get(wanted) or next(iter(files.values()))
    return read_known_columns(file, inputs.features, inputs.target, inputs.classes, inputs.encoding)


def _no_test(data: Folder) -> FordeError:
    return FordeError(
        f"'{data}', which the ensemble was trained on, has no test split; test on other data (forde evaluate RUN "
        "--data OTHER), or hold some out (forde train --test 0.2)."
    )


def _renumbered(labels: np.ndarray, names: tuple[str, ...], known: tuple[str, ...], data: str) -> np.ndarray:
    """Labels `[N]` by the names of their classes; numbers where one side has no names."""
    if names == known:
        return labels
    number = {name: place for place, name in enumerate(known)}
    if any(name not in number for name in names):
        unnamed = tuple(map(str, range(len(names))))
        if known and names == unnamed and len(names) <= len(known):
            return labels
        missing = next(name for name in names if name not in number)
        raise unknown_name(f"class in '{data}'", missing, known)
    return np.array([number[name] for name in names], np.int64)[labels]
