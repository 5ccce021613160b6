"""Feature tables in CSV and Parquet files: one file, or a folder with one file per split."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from forde.errors import FordeError, unknown_name

from .checks import check_is_file
from .description import Description, Table

Task = Literal["classification", "regression"]
SUFFIXES = (".csv", ".parquet")
MOST_CLASSES = 100
"""A column of whole numbers with more distinct values is taken for a quantity."""


def table_files(path: Path) -> dict[str, Path]:
    """Split → file: a file is all training data, a folder may hold train, valid and test files."""
    if not path.is_dir():
        return {"train": path}
    names = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
    return {
        split: path / f"{stem}{suffix}"
        for split, stems in names.items()
        for stem in stems
        for suffix in SUFFIXES
        if (path / f"{stem}{suffix}").is_file()
    }


def read_table(path: Path, split: str, target: str | None, task: Task | None) -> Table:
    """A split of a table. The target is the named column, else the last; all others are features.

    Text, truth values and whole numbers with up to 100 distinct values are classes, anything else is a quantity,
    unless `task` says which. Classes and statistics are those of the training file.
    """
    from pyarrow.types import is_nested

    files = table_files(path)
    if split not in files:
        raise unknown_name(f"split of '{path}'", split, files)
    columns = {part: _read(file) for part, file in files.items()}
    training = columns.get("train", columns[split])
    training_file = files.get("train", files[split])
    target = _checked_target(training, target, training_file)
    names = tuple(name for name in training.column_names if name != target)
    if not names:
        raise FordeError(f"'{training_file}' has only the target column '{target}'; add columns of features.")
    if is_nested(training.column(target).type):
        raise FordeError(f"the target column {target!r} in '{training_file}' holds lists or records; name another one.")
    classes = _classes(training.column(target), task)
    x = _features(columns[split], names, files[split])
    reference = x if files[split] == training_file else _features(training, names, training_file)
    mean, std = (tuple(values.tolist()) for values in (reference.mean(0, np.float64), reference.std(0, np.float64)))
    y = _targets(columns[split], target, classes, files[split])
    sizes = {part: table.num_rows for part, table in columns.items()}
    source = f"the file '{files[split]}'"
    described = Description(path.stem, len(classes), (len(names),), mean, std, sizes, source, classes)
    return Table(x, y, names, described, source)


def _read(path: Path) -> Any:
    check_is_file(path)
    try:
        if path.suffix.lower() == ".csv":
            from pyarrow import csv

            table = csv.read_csv(path)
        else:
            from pyarrow import parquet

            table = parquet.ParquetFile(path).read()
        names = table.column_names
    except Exception as error:  # a broken file can raise anything, from ArrowException to UnicodeDecodeError
        reason = str(error).partition("\n")[0][:120].rstrip(".")
        raise FordeError(f"'{path}' cannot be read as a table ({reason}); write it again.") from error
    if not table.num_rows:
        raise FordeError(f"'{path}' has no rows; write it again.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FordeError(f"'{path}' has more than one column {twice!r}; rename or drop one.")
    return table


def _checked_target(table: Any, target: str | None, path: Path) -> str:
    if target is None:
        return str(table.column_names[-1])
    if target not in table.column_names:
        raise FordeError(f"in '{path}': {unknown_name('column', target, table.column_names)}")
    return target


def _classes(column: Any, task: Task | None) -> tuple[str, ...]:
    """The names of the classes, none for a quantity; whole numbers in numeric order."""
    import pyarrow.types as kinds

    if task == "regression" or (task is None and kinds.is_floating(column.type)):
        return ()
    values = column.drop_null().unique().to_pylist()
    whole = kinds.is_integer(column.type)
    if task is None and whole and len(values) > MOST_CLASSES:
        return ()
    return tuple(str(value) for value in sorted(values))


def _features(table: Any, names: tuple[str, ...], path: Path) -> np.ndarray:
    columns = []
    for name in names:
        if name not in table.column_names:
            raise FordeError(f"in '{path}': {unknown_name('column', name, table.column_names)}")
        columns.append(_numbers(table.column(name), name, path))
    return np.stack(columns, axis=1)


def _numbers(column: Any, name: str, path: Path) -> np.ndarray:
    import pyarrow.types as kinds

    if not (kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_boolean(column.type)):
        raise FordeError(
            f"column {name!r} in '{path}' holds {column.type}, but numbers were expected; encode or drop it."
        )
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        values = column.to_numpy().astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise FordeError(
            f"column '{name}' in '{path}' has {len(wrong)} missing or infinite values, the first in row {wrong[0]}; "
            "remove or impute those rows."
        )
    return values


def _targets(table: Any, target: str, classes: tuple[str, ...], path: Path) -> np.ndarray:
    if target not in table.column_names:
        raise FordeError(f"in '{path}': {unknown_name('column', target, table.column_names)}")
    if not classes:
        return _numbers(table.column(target), target, path)
    number = {name: label for label, name in enumerate(classes)}
    labels = [number.get(str(value), -1) for value in table.column(target).to_pylist()]
    if -1 in labels:
        row = labels.index(-1)
        value = table.column(target)[row].as_py()
        raise FordeError(f"row {row} of '{path}' has the class '{value}', which the training data does not have.")
    return np.array(labels, np.int64)
