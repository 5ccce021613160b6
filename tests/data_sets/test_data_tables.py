"""Feature tables in CSV and Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forde.data
from forde.data import Table
from forde.errors import FordeError

CSV = "width,height,species\n1.0,2,cat\n3.0,4,dog\n5.0,7,cat\n"


def table_of(path: Path, split: str = "train", **options: str | int) -> Table:
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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("target", "name"), [("a", "a"), (0, "a"), ("0", "a"), ("2", "2"), (-1, "y"), ("-3", "1"), (1, "1")]
)
def test_a_target_by_name_or_by_number(tmp_path: Path, suffix: str, target: str | int, name: str) -> None:
    from pyarrow import csv, parquet

    columns = {"a": [1.5, 2.5], "1": [3.5, 4.5], "2": [5.5, 6.5], "y": [7.5, 8.5]}  # a name wins over a number
    path = write(tmp_path / "t.csv", "a,1,2,y\n1.5,3.5,5.5,7.5\n2.5,4.5,6.5,8.5\n")
    if suffix == ".parquet":
        path = tmp_path / "t.parquet"
        parquet.write_table(csv.read_csv(tmp_path / "t.csv"), path)
    table = table_of(path, target=target)
    assert table.target_name == name and table.y.tolist() == columns.pop(name)
    assert table.feature_names == tuple(columns)
    np.testing.assert_array_equal(table.x, np.array(list(columns.values())).T)


@pytest.mark.parametrize("target", [3, "3", -4])
def test_a_number_beyond_the_columns(tmp_path: Path, target: str | int) -> None:
    with pytest.raises(FordeError, match=rf"pets\.csv' has no column {target}; .* from 0 to 2 "):
        table_of(write(tmp_path / "pets.csv"), target=target)


def test_of_thousands_of_columns_the_nearest_is_named_and_a_few_listed(tmp_path: Path) -> None:
    names = ",".join(f"gene{number}" for number in range(3000))
    path = write(tmp_path / "genes.csv", f"{names},tumour\n" + "1," * 3000 + "a\n")
    with pytest.raises(FordeError, match=r"did you mean 'tumour'.* and 2,951 more") as raised:
        table_of(path, target="tumor")
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("options", [{"target": "a"}, {"task": "regression"}, {"target": 0}])
@pytest.mark.parametrize("name", ["digits", "regression-1d", "set.npz"])
def test_a_target_or_task_where_there_are_no_columns_is_refused(
    tmp_path: Path, name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("set.npz", x=np.zeros((3, 2)), y=[0, 1, 0])
    with pytest.raises(FordeError, match=rf"'{name}' is another kind of data set; leave {next(iter(options))} out"):
        table_of(Path(name), **options)


@pytest.mark.parametrize("rows", [1, 2, 7, 129])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_row_of_the_file_is_there_in_order(tmp_path: Path, rows: int, suffix: str) -> None:
    import pyarrow
    from pyarrow import csv, parquet

    table = pyarrow.table({"a": [row + 0.5 for row in range(rows)], "y": [row + 0.25 for row in range(rows)]})
    path = tmp_path / f"t{suffix}"
    csv.write_csv(table, path) if suffix == ".csv" else parquet.write_table(table, path)
    found = table_of(path)
    assert found.x[:, 0].tolist() == [row + 0.5 for row in range(rows)]
    assert found.y.tolist() == [row + 0.25 for row in range(rows)] and found.description.splits == {"train": rows}


@pytest.mark.parametrize(("count", "classes"), [(100, 100), (101, 0), (200, 0)])
def test_many_whole_numbers_are_a_quantity(tmp_path: Path, count: int, classes: int) -> None:
    rows = "\n".join(f"{row},{row}" for row in range(count))
    assert table_of(write(tmp_path / "counts.csv", f"x,count\n{rows}\n")).description.n_classes == classes


def test_truth_values_are_0_and_1(tmp_path: Path) -> None:
    table = table_of(write(tmp_path / "t.csv", "a,b,y\ntrue,1.5,false\nfalse,2.5,true\n"))
    assert table.x.tolist() == [[1, 1.5], [0, 2.5]] and table.y.tolist() == [0, 1]
    assert table.description.classes == ("False", "True")


@pytest.mark.parametrize("stem", ["valid", "val"])
def test_both_names_of_the_validation_file(tmp_path: Path, stem: str) -> None:
    write(tmp_path / "train.csv")
    write(tmp_path / f"{stem}.csv", "width,height,species\n9,8,dog\n")
    for split in ("valid", "val", "validation"):
        assert table_of(tmp_path, split).x.tolist() == [[9, 8]]
    assert table_of(tmp_path).description.splits == {"train": 3, "valid": 1}


@pytest.mark.parametrize("target", [["a", None, "b"], [1, None, 2], [1.5, None, 2.5]], ids=["text", "whole", "decimal"])
def test_a_missing_target(tmp_path: Path, target: list[object]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1.0, 2.0, 3.0], "y": target}), tmp_path / "t.parquet")
    with pytest.raises(FordeError, match=r"row 2 \(counted from 1\)") as raised:
        table_of(tmp_path / "t.parquet")
    assert "t.parquet" in str(raised.value) and "\n" not in str(raised.value)


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
        ("a,b,y\n1,,0\n2,3,1\n", {}, "a missing or infinite value in row 1 below the header; remove that row or fill"),
        (
            "a,b,y\n1,inf,0\n2,-inf,1\n",
            {},
            "2 missing or infinite values, the first in row 1 below the header; remove those",
        ),
        ("a,b,y\n1,2,0\n2,1e39,1\n", {}, "a missing or infinite value in row 2 below the header"),
        ("a,b,a,y\n1,2,3,0\n2,1,3,1\n", {}, "more than one column 'a'"),
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
    with pytest.raises(FordeError, match=r"row 1 below the header of .*test\.csv.* 'cow'"):
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
