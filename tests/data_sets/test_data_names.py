"""Wide tables, and names of columns and classes that are too many, too long or empty."""

from __future__ import annotations

import json
import time
from pathlib import Path

import data_files as files
import numpy as np
import pytest

import forde.data
from forde.errors import FordeError


def sentence_of(path: Path, split: str = "train", **options: str) -> str:
    with pytest.raises(FordeError) as raised:
        forde.data.load(path, split, **options)  # type: ignore[arg-type]
    said = str(raised.value)
    assert path.name in said and "\n" not in said and said.endswith(".") and len(said) < 1_500
    return said


def write_csv(path: Path, *lines: str) -> Path:
    return files.write_file(path, "\n".join(lines).encode() + b"\n")


def write_table(path: Path, **columns: object) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def wide(path: Path, columns: int) -> Path:
    rows = [[f"{row}.{column % 10}" for column in range(columns)] for row in range(4)]
    return write_csv(path, ",".join(f"gene_{n}" for n in range(columns)), *(",".join(row) for row in rows))


def test_a_table_of_20_000_columns_is_read_in_two_seconds(tmp_path: Path) -> None:
    forde.data.load(wide(tmp_path / "small.csv", 10))  # imports are no part of it
    path = wide(tmp_path / "genes.csv", 20_000)
    begun = time.process_time()
    table = forde.data.load(path)
    assert time.process_time() - begun < 2
    assert isinstance(table, forde.data.Table)
    assert table.x.shape == (4, 19_999) and table.x[2, 13] == np.float32(2.3)
    assert table.feature_names[123] == "gene_123" and table.y.tolist() == [np.float32(row + 0.9) for row in range(4)]


def test_a_mistake_in_a_wide_table_is_a_short_sentence(tmp_path: Path) -> None:
    path = wide(tmp_path / "genes.csv", 3_000)
    said = sentence_of(path, target="gene_30000")
    assert "did you mean 'gene_" in said and "and 2,950 more." in said


def test_a_header_of_more_than_a_megabyte(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "a.csv", ",".join(f"a column with the number {n}" for n in range(50_000)), "1," * 49_999 + "1"
    )
    assert "the first line of" in sentence_of(path) and "more than 1,048,576 bytes" in sentence_of(path)


@pytest.mark.parametrize("line_end", ["\r", "\r\n", "\n"])
def test_line_ends_of_all_systems(tmp_path: Path, line_end: str) -> None:
    lines = ["x,y", *(f"{n},0.5" for n in range(200_000))]  # more than a header may have
    table = forde.data.load(files.write_file(tmp_path / "a.csv", line_end.join(lines).encode()))
    assert isinstance(table, forde.data.Table) and table.x[:, 0].tolist() == list(range(200_000))


def test_rows_of_more_than_a_megabyte(tmp_path: Path) -> None:
    """Arrow's blocks are of a megabyte unless told otherwise, and no row may be longer."""
    cells = [f"{n}.{'0' * 60}" for n in range(20_000)]
    table = forde.data.load(write_csv(tmp_path / "a.csv", ",".join(f"g{n}" for n in range(20_000)), ",".join(cells)))
    assert isinstance(table, forde.data.Table) and table.x[0].tolist() == list(range(19_999))


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_label_is_no_class(tmp_path: Path, empty: str) -> None:
    path = write_csv(tmp_path / "a.csv", "x,species", "1,cat", f"2,{empty}", "3,dog", f"4,{empty}")
    assert "row 2 below the header of" in sentence_of(path)
    assert "no class in the column 'species' (2 such rows in all); fill" in sentence_of(path)
    parquet = write_table(tmp_path / "a.parquet", x=[1.0, 2.0, 3.0], species=["cat", "dog", empty])
    assert "row 3 (counted from 1) of" in sentence_of(parquet) and "'species'; fill" in sentence_of(parquet)
    missing = write_table(tmp_path / "b.parquet", x=[1.0, 2.0, 3.0], species=["cat", None, "dog"])
    assert "row 2 (counted from 1) of" in sentence_of(missing)
    write_csv(tmp_path / "set" / "train.csv", "x,species", "1,cat", "2,dog")
    write_csv(tmp_path / "set" / "test.csv", "x,species", "1,cat", f"2,{empty}")
    with pytest.raises(FordeError, match=r"row 2 below the header of .*test\.csv' has no class"):
        forde.data.load(tmp_path / "set", "test")


def hub_file(path: Path, names: list[str]) -> Path:
    """A Parquet file of one image that declares these classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = pa.table({"image": pa.array([files.encoded(np.zeros((2, 2, 3), np.uint8))], pa.binary()), "label": [0]})
    pq.write_table(table.replace_schema_metadata({b"huggingface": json.dumps(features).encode()}), path)
    return path


def test_declared_classes(tmp_path: Path) -> None:
    assert forde.data.load(hub_file(tmp_path / "a.parquet", ["cat", "dog"])).description.classes == ("cat", "dog")
    many = hub_file(tmp_path / "b.parquet", [str(n) for n in range(200_000)])
    assert "names 200,000 classes, but 100,000 are the most" in sentence_of(many)
    assert "class 1 in" in sentence_of(hub_file(tmp_path / "c.parquet", ["cat", ""]))
    long = sentence_of(hub_file(tmp_path / "d.parquet", ["cat", "a" * 5_000]))
    assert "a name of 5,000 characters, 'aaaa" in long and len(long) < 500
    with pytest.raises(FordeError, match="class 0 in 'arrays in memory' has an empty name"):
        forde.data.from_arrays(np.zeros((1, 2, 2), np.uint8), [0], classes=("",))


def test_classes_of_a_table(tmp_path: Path) -> None:
    many = [f"class {n}" for n in range(200_000)]
    assert "has 200,000 different values" in sentence_of(
        write_csv(tmp_path / "a.csv", "x,y", *(f"1,{n}" for n in many))
    )
    path = write_table(tmp_path / "a.parquet", x=np.ones(200_000), y=many)
    assert "more than 100,000 different values" in sentence_of(path)
    long = "b" * 5_000
    assert "a name of 5,000 characters" in sentence_of(write_csv(tmp_path / "b.csv", "x,y", "1,a", f"2,{long}"))
    assert "a name of 5,000 characters" in sentence_of(write_table(tmp_path / "b.parquet", x=[1.0, 2.0], y=["a", long]))
    numbers = write_table(tmp_path / "c.parquet", x=np.ones(200_000), y=np.arange(200_000))
    assert forde.data.load(numbers).description.n_classes == 0  # whole numbers of many values are a quantity
    assert "has 200,000 different values" in sentence_of(numbers, task="classification")


def test_names_of_columns(tmp_path: Path) -> None:
    long = "c" * 5_000
    assert "column 1 of" in sentence_of(write_csv(tmp_path / "a.csv", f"x,{long},y", "1,2,3"))
    said = sentence_of(write_table(tmp_path / "a.parquet", **{"x": [1.0], long: [2.0], "y": [3.0]}))
    assert "a name of 5,000 characters, 'cccc" in said and len(said) < 500


def test_text_targets_of_parquet_and_csv_agree(tmp_path: Path) -> None:
    """Values are gathered in parts, each with its own numbers for them."""
    rng = np.random.default_rng(0)
    labels = [f"class {n}" for n in rng.integers(0, 30, 10_000)]
    x = rng.random(10_000).round(3)
    parquet = forde.data.load(write_table(tmp_path / "a.parquet", x=x, y=labels))
    lines = [f"{value},{label}" for value, label in zip(x, labels, strict=True)]
    csv = forde.data.load(write_csv(tmp_path / "a.csv", "x,y", *lines))
    assert isinstance(parquet, forde.data.Table) and isinstance(csv, forde.data.Table)
    assert parquet.description.classes == csv.description.classes == tuple(sorted(set(labels)))
    assert [parquet.description.classes[label] for label in parquet.y] == labels
    np.testing.assert_array_equal(parquet.y, csv.y)
    np.testing.assert_array_equal(parquet.x, csv.x)


def test_a_column_of_truth_values_or_dates_can_be_the_target(tmp_path: Path) -> None:
    import datetime

    days = [datetime.date(2020, 1, day) for day in (3, 1, 3)]
    dated = forde.data.load(write_table(tmp_path / "a.parquet", x=[1.0, 2.0, 3.0], y=days))
    assert dated.description.classes == ("2020-01-01", "2020-01-03")
    true = forde.data.load(write_table(tmp_path / "b.parquet", x=[1.0, 2.0, 3.0], y=[True, False, True]))
    assert isinstance(true, forde.data.Table) and true.description.classes == ("False", "True")
    assert true.y.tolist() == [1, 0, 1]
