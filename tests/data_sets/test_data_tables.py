"""Feature tables in CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forde.data
from forde.data import Table
from forde.errors import FordeError

CSV = "width,height,species\n1.0,2,cat\n3.0,4,dog\n5.0,7,cat\n"


def table_of(path: Path, split: str = "train", **options: str) -> Table:
    data = forde.data.load(path, split, **options)  # type: ignore[arg-type]
    assert isinstance(data, Table)
    return data


def write(path: Path, text: str = CSV) -> Path:
    path.write_text(text)
    return path


def test_the_last_column_is_the_target(tmp_path: Path) -> None:
    table = table_of(write(tmp_path / "pets.csv"))
    assert table.x.tolist() == [[1, 2], [3, 4], [5, 7]] and table.x.dtype == np.float32
    assert table.y.tolist() == [0, 1, 0] and table.y.dtype == np.int64
    assert table.feature_names == ("width", "height")
    description = table.description
    assert description.classes == ("cat", "dog") and description.shape == (2,) and description.splits == {"train": 3}
    assert description.mean == pytest.approx((3, 13 / 3)) and description.std[0] == pytest.approx(np.std([1, 3, 5]))


def test_a_named_target_and_a_task(tmp_path: Path) -> None:
    path = write(tmp_path / "pets.csv", "width,height,age\n1.5,2,30\n3.5,4,7\n")
    assert table_of(path).description.classes == ("7", "30")  # in numeric order
    ages = table_of(path, task="regression")
    assert ages.y.tolist() == [30, 7] and ages.y.dtype == np.float32 and ages.description.n_classes == 0
    widths = table_of(path, target="width")
    assert widths.y.tolist() == [1.5, 3.5] and widths.feature_names == ("height", "age")
    assert table_of(path, target="width", task="classification").description.classes == ("1.5", "3.5")


def test_many_whole_numbers_are_a_quantity(tmp_path: Path) -> None:
    rows = "\n".join(f"{row},{row}" for row in range(200))
    assert table_of(write(tmp_path / "counts.csv", f"x,count\n{rows}\n")).description.n_classes == 0


def test_parquet_and_csv_agree_and_splits_share_classes(tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    write(tmp_path / "train.csv")
    parquet.write_table(csv.read_csv(tmp_path / "train.csv"), tmp_path / "pets.parquet")
    np.testing.assert_array_equal(table_of(tmp_path / "pets.parquet").x, table_of(tmp_path / "train.csv").x)
    write(tmp_path / "test.csv", "species,width,height\ndog,0,1\n")  # in another order
    test = table_of(tmp_path, "test", target="species")
    assert test.y.tolist() == [1] and test.x.tolist() == [[0, 1]]
    assert test.description.splits == {"train": 3, "test": 1} and test.description.mean[0] == pytest.approx(3)


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (CSV, {"target": "spices"}, "did you mean 'species'"),
        ("a,b,y\n1,x,0\n2,z,1\n", {}, "column 'b'"),
        ("a,b,y\n1,,0\n2,3,1\n", {}, "1 missing or infinite values, the first in row 0"),
        ("a,y\n1,0\n2\n", {}, "cannot be read as a table"),
        ("a,y\n", {}, "no rows"),
        ("", {}, "cannot be read as a table"),
        ("y\n1\n", {}, "only the target column"),
    ],
)
def test_broken_tables_get_one_sentence(tmp_path: Path, text: str, options: dict[str, str], complaint: str) -> None:
    path = write(tmp_path / "broken.csv", text)
    with pytest.raises(FordeError, match=r"broken\.csv") as raised:
        table_of(path, **options)
    assert complaint in str(raised.value) and "\n" not in str(raised.value)


def test_unknown_class_and_missing_column_in_the_test_file(tmp_path: Path) -> None:
    write(tmp_path / "train.csv")
    write(tmp_path / "test.csv", "width,height,species\n1,2,cow\n")
    with pytest.raises(FordeError, match=r"row 0 of .*test\.csv.* 'cow'"):
        table_of(tmp_path, "test")
    write(tmp_path / "test.csv", "widht,height,species\n1,2,cat\n")
    with pytest.raises(FordeError, match=r"test\.csv.*did you mean 'widht'"):
        table_of(tmp_path, "test")


def test_truncated_parquet_table(tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    path = tmp_path / "pets.parquet"
    parquet.write_table(csv.read_csv(write(tmp_path / "pets.csv")), path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FordeError, match=r"pets\.parquet.*truncated"):
        table_of(path)
