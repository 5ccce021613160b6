"""Feature tables in CSV and Parquet files: one file, or a folder with one file per split."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from forde.data.checks import MAX_CLASSES, check_class_names, check_finite, column_statistics, row_in_words
from forde.data.csv_header import warn_of_index
from forde.data.description import Description, Table
from forde.data.encoding import MISSING, Encoding, encoded
from forde.data.parquet import count_rows
from forde.data.table_files import is_number, no_number, read_columns
from forde.errors import FordeError, unknown_name
from forde.reading.files import MAX_SHOWN

log = logging.getLogger(__name__)

Task = Literal["classification", "regression"]
SUFFIXES = (".csv", ".parquet")
LEAST_COUNTED = 20
"""Rows from which on a column that counts them is no chance."""
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


def read_table(
    path: Path,
    split: str,
    target: str | int | None,
    task: Task | None,
    *,
    encode: bool = False,
    drop: Sequence[str] = (),
) -> Table:
    """A split of a table. The target is the column with that name or number, else the last; others are features.

    Text, truth values and whole numbers with up to 100 distinct values are classes, anything else is a quantity,
    unless `task` says which. Classes and statistics are those of the training file.

    Args:
        encode: whether text and gaps are made numbers, as `Encoding` has it.
        drop: columns that are no features.
    """
    files = table_files(path)
    if split not in files:
        raise unknown_name(f"split of '{path}'", split, files)
    training_file = files.get("train", files[split])
    training = read_columns(training_file, target, text=encode, drop=drop)
    *names, name = training.column_names
    warn_of_index(names, training_file)
    _warn_of_numbered_rows(training, names, training_file)
    own = files[split] == training_file
    columns = training if own else read_columns(files[split], name, names, text=encode)
    known = {training_file: training.num_rows, files[split]: columns.num_rows}
    sizes = {part: known[file] if file in known else _rows(file) for part, file in files.items()}
    classes = _classes(training.column(name), task, name, training_file)
    encoding = Encoding.of(training, names, training_file) if encode else None
    x = _features(columns, names, files[split], encoding)
    mean, std = column_statistics(x if own else _features(training, names, training_file, encoding))
    y = _targets(columns, name, classes, files[split])
    source = f"the file '{files[split]}'"
    described = Description(_name(path), len(classes), x.shape[1:], mean, std, sizes, source, classes)
    return Table(x, y, tuple(names) if encoding is None else encoding.names, described, source, name, encoding)


def read_known_columns(
    path: Path,
    features: Sequence[str],
    target: str | None,
    classes: tuple[str, ...] = (),
    encoding: Encoding | None = None,
) -> Table:
    """The columns that an ensemble was trained on, wherever they stand in a file; others are not looked at.

    Args:
        target: None where the file need not have it: y is then `[0]`.
        classes: names in the order of the labels; empty for a quantity.
        encoding: what text and gaps became in training, where there were some.
    """
    sources = features if encoding is None else encoding.sources
    columns = read_columns(path, target, sources, labelled=target is not None, text=encoding is not None)
    x = _features(columns, sources, path, encoding)
    y = np.empty(0, np.float32) if target is None else _targets(columns, target, classes, path)
    mean, std = column_statistics(x)
    source = f"the file '{path}'"
    told = Description(_name(path), len(classes), x.shape[1:], mean, std, {"test": len(x)}, source, classes)
    return Table(x, y, tuple(features), told, source, target or "", encoding)


def _warn_of_numbered_rows(columns: Any, names: Sequence[str], path: Path) -> None:
    """Say that a column counts the rows: it is an identifier as a rule, and new rows lie outside of what it held."""
    import pyarrow.types as kinds

    if columns.num_rows < LEAST_COUNTED:
        return
    for name in names:
        column = columns.column(name)
        if kinds.is_integer(column.type) and not column.null_count and (np.diff(column.to_numpy()) == 1).all():
            log.warning(
                "column '%s' in '%s' counts the rows (%s, %s, ...), and is used as a feature; if it is an identifier, "
                "leave it out (--drop %s)", name, path, column[0], column[1], shlex.quote(name),
            )  # fmt: skip


def _name(path: Path) -> str:
    """Of the data in a file: its own, or its folder's where it is a split in a folder."""
    split = path.parent.name and path.stem in ("train", "valid", "val", "test")
    return path.parent.name if split else path.stem


def _rows(path: Path) -> int:
    return count_rows([path]) if path.suffix.lower() == ".parquet" else int(read_columns(path, text=True).num_rows)


def _classes(column: Any, task: Task | None, name: str, path: Path) -> tuple[str, ...]:
    """The names of the classes, none for a quantity; whole numbers in numeric order."""
    import pyarrow.types as kinds

    if task == "regression" or (task is None and kinds.is_floating(column.type)):
        return ()
    values = column.drop_null().unique()
    if task is None and kinds.is_integer(column.type) and len(values) > MOST_CLASSES:
        return ()
    if len(values) > MAX_CLASSES:
        raise FordeError(
            f"the target column {name!r} in '{path}' has {len(values):,} different values, but {MAX_CLASSES:,} classes "
            'are the most; name another column, or say that it is a quantity (task="regression").'
        )
    _check_not_empty(column, name, path)
    names = tuple(str(value) for value in sorted(values.to_pylist()))
    check_class_names(names, path)
    return names


def _check_not_empty(column: Any, name: str, path: Path) -> None:
    """Refuse a cell without a class: missing, text without a character, or text that says so."""
    values, codes = encoded(column)
    empty = [code for code, value in enumerate(values) if isinstance(value, str) and not value.strip()]
    rows = np.flatnonzero(np.isin(codes, [-1, *empty]))
    if len(rows):
        raise FordeError(
            f"{row_in_words(rows[0], path)} of '{path}' has no class in the column {name!r}{_in_all(rows)}; fill it in "
            "or remove the row."
        )
    said = [code for code, value in enumerate(values) if isinstance(value, str) and value.strip() in MISSING]
    rows = np.flatnonzero(np.isin(codes, said))
    if len(rows):
        raise FordeError(
            f"{row_in_words(rows[0], path)} of '{path}' has {values[codes[rows[0]]]!r} in the column {name!r}, which "
            f"means a missing value{_in_all(rows)}; fill it in or remove the row, or rename the class if it is one."
        )


def _in_all(rows: np.ndarray) -> str:
    return f" ({len(rows):,} such rows in all)" if len(rows) > 1 else ""


def _features(table: Any, names: Sequence[str], path: Path, encoding: Encoding | None = None) -> np.ndarray:
    """`[N, D]` in float32; the table begins with these columns."""
    if encoding is not None:
        x = encoding.apply(table, f"'{path}'")
        check_finite(x, encoding.names, f"'{path}'", partial(row_in_words, path=path))
        return x
    x = np.empty((table.num_rows, len(names)), np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        for place, column in enumerate(table.columns[: len(names)]):
            x[:, place] = column.to_numpy()
    check_finite(x, names, f"'{path}'", partial(row_in_words, path=path))
    return x


def _targets(table: Any, target: str, classes: tuple[str, ...], path: Path) -> np.ndarray:
    column = table.column(target)
    if not classes:
        if not is_number(column.type):
            raise no_number(target, column.type, path)
        return _features(table.select([target]), [target], path)[:, 0]
    _check_not_empty(column, target, path)
    number = {name: label for label, name in enumerate(classes)}
    values, codes = encoded(column)
    labels = np.array([number.get(str(value), -1) for value in values], np.int64)[codes]
    if (unknown := np.flatnonzero(labels < 0)).size:
        value = str(values[codes[unknown[0]]])[:MAX_SHOWN]
        raise FordeError(
            f"{row_in_words(unknown[0], path)} of '{path}' has the class '{value}', which the training data does not "
            "have; correct it, or remove the row."
        )
    return labels
