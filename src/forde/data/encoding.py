"""Text and gaps in a table's columns, made numbers: what each column became in training, and the same for later rows.

text    → a column of 0 and 1 for each value; of more than 20 values, the rarest share the last one
number  → itself; where training had gaps, these are its mean, and a column beside says where they were
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from forde.data.csv_header import is_number as reads_as_number
from forde.data.rows import GIVEN
from forde.errors import FordeError, first_line, missing_column

log = logging.getLogger(__name__)

MISSING = {"#N/A", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
"""Text that readers of tables take for a missing value, in a column of numbers."""
MOST_VALUES = 20
"""Columns that one of text becomes."""
GAP, RARE = "(missing)", "(rare)"
MOST_COLUMNS = 1 << 20


@dataclass(frozen=True)
class Column:
    """A column of the file, and what it became."""

    name: str
    fill: float | None = None
    """For the gaps of a column of numbers that had some; it then has a second column, which says where they are."""
    values: tuple[str, ...] | None = None
    """Of a column of text, in the order of its columns."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the columns that it became."""
        if self.values is not None:
            return tuple(f"{self.name}={value}" for value in self.values)
        return (self.name,) if self.fill is None else (self.name, f"{self.name} {GAP}")


@dataclass(frozen=True)
class Encoding:
    """Of all columns of features.

    >>> import pyarrow as pa
    >>> table = pa.table({"city": ["Oslo", "Rome", "Oslo", ""], "age": [30, None, 50, 40]})
    >>> encoding = Encoding.of(table, ["city", "age"], Path("t.csv"))
    >>> encoding.names
    ('city=Oslo', 'city=Rome', 'city=(missing)', 'age', 'age (missing)')
    >>> encoding.apply(table, "t.csv").tolist()[1]
    [0.0, 1.0, 0.0, 40.0, 1.0]
    >>> Encoding.from_json(encoding.to_json()) == encoding
    True
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: Any, names: Sequence[str], path: Path) -> Encoding | None:
        """What these columns of an Arrow table are made into; None where all are numbers without gaps."""
        encoding = cls(tuple(_learned(table.column(name), name, path) for name in names))
        outputs = encoding.names
        if len({*outputs}) < len(outputs):
            twice = next(name for name in outputs if outputs.count(name) > 1)
            raise FordeError(f"two columns of '{path}' would both become '{twice}'; rename one of them.")
        return None if outputs == tuple(names) else encoding

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that networks see, in their order."""
        return tuple(name for column in self.columns for name in column.outputs)

    def __str__(self) -> str:
        """What was made of the columns, in a few words."""
        texts = sum(column.values is not None for column in self.columns)
        gaps = sum(column.fill is not None for column in self.columns)
        kinds = [f"{texts} of text"] * bool(texts) + [f"{gaps} of numbers with gaps"] * bool(gaps)
        return f"{len(self.columns):,} columns, {' and '.join(kinds)}"

    @property
    def sources(self) -> tuple[str, ...]:
        """Columns of a file."""
        return tuple(column.name for column in self.columns)

    def apply(self, table: Any, where: str) -> np.ndarray:
        """Columns of an Arrow table, found by name → float32 `[N, D]`; a gap that training has not had stays NaN."""
        x = np.zeros((table.num_rows, len(self.names)), np.float32)
        place = 0
        for column in self.columns:
            if column.name not in table.column_names:
                raise missing_column(where, column.name, table.column_names)
            _fill(x[:, place : place + len(column.outputs)], column, table.column(column.name), where)
            place += len(column.outputs)
        return x

    def of_frame(self, frame: Any) -> np.ndarray:
        """As `apply`, for a data frame of pandas or polars."""
        import pyarrow as pa

        columns = [name for name in self.sources if name in frame.columns]
        part = frame[columns]
        try:
            table = part.to_arrow() if hasattr(part, "to_arrow") else pa.Table.from_pandas(part, preserve_index=False)
            return self.apply(table, GIVEN)
        except pa.ArrowException as error:
            raise FordeError(
                f"{GIVEN} hold something else than numbers and text ({first_line(error)[:120]}); correct them."
            ) from None

    def to_json(self) -> list[dict[str, Any]]:
        """Lists, text and numbers, from which `from_json` makes the same again."""
        return [{**asdict(one), "values": None if one.values is None else list(one.values)} for one in self.columns]

    @classmethod
    def from_json(cls, value: Any) -> Encoding:
        """Inverse of `to_json`, for a file that anybody may have written."""
        if not isinstance(value, list) or len(value) > MOST_COLUMNS or not all(map(_is_valid, value)):
            raise FordeError("the description of the table's columns is damaged; train again.")
        return cls(tuple(Column(one["name"], one["fill"], _as_tuple(one["values"])) for one in value))


def _learned(column: Any, name: str, path: Path) -> Column:
    import pyarrow.types as kinds

    if kinds.is_null(column.type):
        raise FordeError(
            f"column {name!r} in '{path}' is empty in every row; leave it out (--drop {shlex.quote(name)})."
        )
    if not is_text(column.type):
        gaps = np.isnan(_numbers(column))
        if gaps.all():
            raise FordeError(
                f"column {name!r} in '{path}' is empty in every row; leave it out (--drop {shlex.quote(name)})."
            )
        return Column(name, float(_numbers(column)[~gaps].mean()) if gaps.any() else None)
    values, codes = said(column)
    counts = np.bincount(codes, minlength=len(values))
    there = [value for value in values if value != GAP]
    if 2 * len(there) > len(codes) > MOST_VALUES:
        numbers = sum(map(reads_as_number, there))
        if 2 * numbers > len(there):
            text = next(value for value in there if not reads_as_number(value))
            raise FordeError(
                f"column {name!r} in '{path}' holds numbers, but also text such as '{text[:40]}'; correct it, or leave "
                f"the column out (--drop {shlex.quote(name)})."
            )
        raise FordeError(
            f"column {name!r} in '{path}' has {len(there):,} different texts in {len(codes):,} rows, which says "
            f"nothing of other rows; leave it out (--drop {shlex.quote(name)})."
        )
    order = sorted(range(len(values)), key=lambda code: (-counts[code], values[code]))
    if len(values) > MOST_VALUES:
        kept = sorted(values[code] for code in order[: MOST_VALUES - 1])
        return Column(name, values=(*kept, RARE))
    return Column(name, values=(*sorted(there), *([GAP] if GAP in values else [])))


def _fill(x: np.ndarray, column: Column, found: Any, where: str) -> None:
    """Write what a column became, for these rows `[N, its columns]`."""
    if column.values is None:
        if is_text(found.type):
            raise FordeError(
                f"column {column.name!r} in {where} holds text, but held numbers in training; correct the file."
            )
        numbers = _numbers(found)
        x[:, 0] = numbers
        if column.fill is not None:
            gaps = np.isnan(numbers)
            x[gaps, 0], x[:, 1] = column.fill, gaps
        return
    place = {value: number for number, value in enumerate(column.values)}
    values, codes = said(found)
    new = [value for value in values if value not in place and value != GAP]
    if new and RARE not in place:
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        log.warning(
            "column '%s' in %s has a value that was not there in training, '%s'%s; it counts as none of its values",
            column.name, where, new[0][:40], more,
        )  # fmt: skip
    slots = np.array([place.get(value, place.get(RARE, -1)) for value in values], np.int64)[codes]
    rows = np.flatnonzero(slots >= 0)
    x[rows, slots[rows]] = 1


def is_text(kind: Any) -> bool:
    """Whether an Arrow column holds text, each value perhaps once."""
    import pyarrow.types as kinds

    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def said(column: Any) -> tuple[list[str], np.ndarray]:
    """The different texts of a column, `GAP` for what is missing, and the number of each row's among them."""
    values, codes = encoded(column)
    texts = [GAP if value is None or not str(value).strip() or str(value).strip() in MISSING else str(value)
             for value in [*values, None]]  # fmt: skip
    known = {text: number for number, text in enumerate(dict.fromkeys(texts[code] for code in np.unique(codes)))}
    return [*known], np.array([known.get(text, -1) for text in texts], np.int64)[codes]


def encoded(column: Any) -> tuple[list[Any], np.ndarray]:
    """The different values of a column, and the number of each row's among them, −1 where it is missing."""
    import pyarrow.types as kinds

    column = (column if kinds.is_dictionary(column.type) else column.dictionary_encode()).unify_dictionaries()
    codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in column.chunks]
    return column.chunk(0).dictionary.to_pylist(), np.concatenate(codes)


def _numbers(column: Any) -> np.ndarray:
    """A column in float64, NaN where something is missing."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.float64(), safe=False).to_numpy()


def _as_tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _is_valid(value: Any) -> bool:
    if not isinstance(value, Mapping) or set(value) != set(Column.__dataclass_fields__):
        return False
    fill, values = value["fill"], value["values"]
    return (
        isinstance(value["name"], str)
        and (fill is None or (type(fill) in (int, float) and isfinite(fill)))
        and (values is None or (isinstance(values, list) and all(isinstance(one, str) for one in values)))
        and (fill is None or values is None)
    )
