"""Columns from CSV and Parquet files: sizes are looked at before anything is read."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from forde.data.checks import MAX_CLASSES, MAX_NAME, check_class_names
from forde.data.csv_header import check_bytes, check_is_header
from forde.data.encoding import is_text
from forde.data.parquet import column_batches, column_sizes, open_parquet
from forde.errors import FordeError, missing_column, unknown_name
from forde.reading.budget import check_fits
from forde.reading.files import check_is_file

MAX_HEADER = 1 << 20
"""Bytes of the first line of a CSV file."""
_BLOCK = 64 << 20
"""Bytes that Arrow parses at once: many rows even of a wide table, since each block costs some memory per column."""
_COLUMN_BYTES = 12_000
"""That Arrow takes for a column of a CSV file, however short."""
_CELL_BYTES = 20
"""Of a value: as float64 or int64, as float32 twice, masks of what is missing."""
_ROW_BYTES = 40
"""Of a target: its number among the classes, as int64, and masks."""


def read_columns(
    path: Path,
    target: str | int | None = None,
    features: Sequence[str] | None = None,
    *,
    labelled: bool = True,
    text: bool = False,
    drop: Sequence[str] = (),
) -> Any:
    """An Arrow table with the features, which must be numbers, and the target behind them, unless it is not labelled.

    The target is the last column unless one is named or numbered, and the features are all others. In Parquet files
    what is no number comes as a dictionary, which has each value once.

    Args:
        text: whether features may be text too.
        drop: columns that are no features.
    """
    check_is_file(path)
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    chosen = partial(_chosen, target=target, features=features, labelled=labelled, text=text, drop=drop, path=path)
    return read(path, chosen)


def _read_csv(path: Path, chosen: Callable[[Any], list[str]]) -> Any:
    from pyarrow import csv

    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(MAX_HEADER + 1).lstrip(b"\r\n")
    header = start.replace(b"\r", b"\n").partition(b"\n")[0]
    if len(header) > MAX_HEADER:
        raise FordeError(
            f"the first line of '{path}' has more than {MAX_HEADER:,} bytes, but it should name the columns; write the "
            "table as Parquet, or with shorter names."
        )
    check_bytes(header, path)
    columns = header.count(b",") + 1
    try:
        check_fits(size + _CELL_BYTES * _cells(path, size, columns) + _COLUMN_BYTES * columns, path, [path])
        block = min(max(size, csv.ReadOptions().block_size), _BLOCK)
        table = csv.read_csv(path, read_options=csv.ReadOptions(block_size=block, use_threads=size > block))
        _check_names(table.column_names, path)  # whether they are text shows here
        check_is_header(table.column_names, path)
    except FordeError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    _check_rows(table.num_rows, path)
    return table.select(chosen(table.schema))


def _cells(path: Path, size: int, columns: int) -> int:
    """At most so many values: every one has a comma or a line end, and every row all columns."""
    if size < _BLOCK:
        return size
    with path.open("rb") as file:
        rows = sum(block.count(b"\n") + block.count(b"\r") for block in iter(lambda: file.read(1 << 20), b""))
    return min(size, (rows + 1) * columns)


def _read_parquet(path: Path, chosen: Callable[[Any], list[str]]) -> Any:
    import pyarrow as pa

    file = open_parquet(path)
    try:
        schema = file.schema_arrow
        _check_names(schema.names, path)
    except UnicodeDecodeError as error:
        raise _unreadable(path, error) from error
    _check_rows(file.metadata.num_rows, path)
    names = chosen(schema)
    for name in names:
        if pa.types.is_nested(schema.field(name).type):
            raise FordeError(f"the column {name!r} in '{path}' holds lists or records; name another one.")
    columns = [name for name in names if pa.types.is_primitive(schema.field(name).type)]
    try:
        size, texts = column_sizes(path, file, columns), len(names) - len(columns)
        of_row = _CELL_BYTES * len(columns) + _ROW_BYTES * max(texts, 1)
        check_fits(size.stored + size.rows * of_row, path, [path])
        table = file.read(columns=columns)
    except FordeError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    parts = {name: table.column(name) for name in columns}
    for name in names:
        if name not in parts:
            parts[name] = _as_dictionary(path, name, schema.field(name).type)
    return pa.table({name: parts[name] for name in names})


def _as_dictionary(path: Path, name: str, kind: Any) -> Any:
    """A column of text as numbers of its different values: a value that is stored once can be in millions of rows."""
    import pyarrow as pa

    known: dict[Any, int] = {}
    parts = []
    for batch in column_batches(path, [name], _ROW_BYTES):
        column = batch.column(0)
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        values = column.dictionary.to_pylist()
        check_class_names([value for value in values if isinstance(value, str) and len(value) > MAX_NAME], path)
        number = np.array([known.setdefault(value, len(known)) for value in values] + [-1], np.int64)
        parts.append(number[column.indices.fill_null(len(values)).to_numpy()])
        if len(known) > MAX_CLASSES:
            raise FordeError(
                f"column {name!r} in '{path}' has more than {MAX_CLASSES:,} different values; name another target."
            )
    codes = np.concatenate(parts) if parts else np.empty(0, np.int64)
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(list(known), kind))


def _chosen(
    schema: Any,
    *,
    target: str | int | None,
    features: Sequence[str] | None,
    labelled: bool,
    text: bool,
    drop: Sequence[str],
    path: Path,
) -> list[str]:
    """The features and the target, if there is to be one; features are looked at before any value is."""
    kinds = {field.name: field.type for field in schema}
    if features is not None and labelled and target not in kinds:
        raise FordeError(
            f"'{path}' has no column '{target}', the target of training; add it, or use forde predict instead."
        )
    target = _named(target, list(kinds), path) if labelled else None
    for name in drop:
        if name not in kinds:
            raise FordeError(f"in '{path}': {unknown_name('column to drop', name, kinds)}")
        if name == target:
            raise FordeError(f"'{name}' is the target in '{path}', so it cannot be dropped; name another target.")
    names = [name for name in kinds if name != target and name not in drop] if features is None else list(features)
    for name in names:
        if name not in kinds:
            raise missing_column(f"'{path}'", name, kinds)
    if not names:
        raise FordeError(f"'{path}' has only the target column '{target}'; add columns of features.")
    for name in names:
        if not is_number(kinds[name]) and not (text and (is_text(kinds[name]) or is_null(kinds[name]))):
            raise no_number(name, kinds[name], path, text=text)
    return names if target is None else [*names, target]


def _named(target: str | int | None, names: list[str], path: Path) -> str:
    """The name of the column; a number counts columns from 0, or back from −1, unless one is named so."""
    if target in names:
        return str(target)
    try:
        place = -1 if target is None else int(target)
    except ValueError:
        raise FordeError(f"in '{path}': {unknown_name('column', target, names)}") from None
    if not -len(names) <= place < len(names):
        raise FordeError(
            f"'{path}' has no column {place}; give a name, or a number from 0 to {len(names) - 1} "
            f"(from -{len(names)} to -1 counts from the end)."
        )
    return names[place]


def no_number(name: str, kind: Any, path: Path, *, text: bool = False) -> FordeError:
    """The error for a column that holds something else."""
    import pyarrow.types as kinds

    expected, advice = "numbers", "encode or drop it"
    if text:
        expected, advice = "numbers or text", f"make it one of these, or leave it out (--drop {shlex.quote(name)})"
    found = "dates or times" if kinds.is_temporal(kind) else str(kind)[:60]
    if kinds.is_binary(kind) and path.suffix.lower() == ".csv":
        found, advice = "bytes that are no text in UTF-8", "write the file again with encoding='utf-8'"
    return FordeError(f"column {name!r} in '{path}' holds {found}, but {expected} were expected; {advice}.")


def is_number(kind: Any) -> bool:
    """Whether a column of this type holds numbers or truth values."""
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))


def is_null(kind: Any) -> bool:
    """Whether a column of this type has nothing in any row."""
    import pyarrow.types as kinds

    return bool(kinds.is_null(kind))


def _check_rows(rows: int, path: Path) -> None:
    if rows <= 0:
        raise FordeError(f"'{path}' has no rows; write it again.")


def _check_names(names: Sequence[str], path: Path) -> None:
    long = max(names, key=len, default="")
    if len(long) > MAX_NAME:
        raise FordeError(
            f"column {names.index(long)} of '{path}' has a name of {len(long):,} characters, {long[:30]!r}..., but "
            f"{MAX_NAME:,} are the most; rename it."
        )
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise FordeError(f"'{path}' has more than one column {name!r}; rename or drop one.")


def _unreadable(path: Path, error: Exception) -> FordeError:
    reason = str(error).partition("\n")[0][:120].rstrip(".")
    return FordeError(f"'{path}' cannot be read as a table ({reason}); write it again.")
