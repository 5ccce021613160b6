"""CSV files as spreadsheets and other programs write them: what would train on something else is said."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import forde
from forde.errors import FordeError


def written(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def sentence_of(path: Path, target: str | None = None) -> str:
    with pytest.raises(FordeError) as raised:
        forde.data.load(path, target=target)
    sentence = str(raised.value)
    assert "\n" not in sentence and path.name in sentence
    return sentence


@pytest.mark.parametrize("label", ["NA", "NaN", "nan", "N/A", "null", "None", " NA "])
def test_a_label_that_means_missing_is_no_class(tmp_path: Path, label: str) -> None:
    lines = f"x,y\n1,cat\n2,dog\n3,{label}\n4,{label}\n"
    sentence = sentence_of(written(tmp_path / "t.csv", lines))
    assert f"row 3 below the header of '{tmp_path / 't.csv'}' has {label!r} in the column 'y'" in sentence
    assert "(2 such rows in all)" in sentence and "rename the class if it is one" in sentence


@pytest.mark.parametrize("label", ["Na", "none", "NAN1", "Nancy"])
def test_labels_that_only_look_like_it(tmp_path: Path, label: str) -> None:
    table = forde.data.load(written(tmp_path / "t.csv", f"x,y\n1,cat\n2,{label}\n"))
    assert set(table.description.classes) == {"cat", label}


def test_labels_that_mean_missing_in_the_test_file(tmp_path: Path) -> None:
    written(tmp_path / "train.csv", "x,y\n1,cat\n2,dog\n")
    written(tmp_path / "test.csv", "x,y\n1,cat\n2,NA\n")
    with pytest.raises(FordeError, match=r"row 2 below the header of .*test\.csv' has 'NA'"):
        forde.data.load(tmp_path, "test")


FRAME = pd.DataFrame({"a": [1.5, 2.5, 3.5], "y": ["u", "v", "u"]})


def test_an_index_is_used_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FRAME.to_csv(tmp_path / "t.csv")
    table = forde.data.load(tmp_path / "t.csv")
    assert isinstance(table, forde.data.Table) and table.x[:, 0].tolist() == [0, 1, 2]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "without a name" in record.getMessage()
    assert "used as feature 1" in record.getMessage() and "index=False" in record.getMessage()


def test_an_index_that_was_read_and_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FRAME.to_csv(tmp_path / "t.csv")
    pd.read_csv(tmp_path / "t.csv").to_csv(tmp_path / "t.csv", index=False)
    forde.data.load(tmp_path / "t.csv")
    assert [record.getMessage().count("'Unnamed: 0'") for record in caplog.records] == [1]


def test_a_file_without_index_is_read_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    forde.data.load(tmp_path / "t.csv")
    assert not caplog.records


@pytest.mark.parametrize("lines", ["5.1,3.5,0\n4.9,3.0,1\n", "0,1\n1,0\n", "1,2,3,4\n5,6,7,8\n", "5.1,,0\n4.9,3.0,1\n"])
def test_a_file_without_header(tmp_path: Path, lines: str) -> None:
    sentence = sentence_of(written(tmp_path / "t.csv", lines))
    assert f"holds numbers only ({lines.splitlines()[0]})" in sentence and "add a line of names" in sentence


def test_values_above_a_class_of_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Wavelengths name columns too, so this is only said."""
    forde.data.load(written(tmp_path / "t.csv", "5.1,3.5,setosa\n4.9,3.0,virginica\n4.7,3.2,setosa\n"))
    (record,) = caplog.records
    assert "all except 'setosa' are numbers" in record.getMessage()


@pytest.mark.parametrize("columns", [None, ["2019", "2020", "2021", "y"]], ids=["counted", "years"])
def test_numbers_that_name_columns(tmp_path: Path, columns: list[str] | None, caplog: pytest.LogCaptureFixture) -> None:
    pd.DataFrame(np.arange(12).reshape(3, 4) / 8, columns=columns).to_csv(tmp_path / "t.csv", index=False)
    table = forde.data.load(tmp_path / "t.csv")
    assert isinstance(table, forde.data.Table) and table.x.shape == (3, 3) and not caplog.records


@pytest.mark.parametrize("target", [None, "y"])
@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
@pytest.mark.parametrize("decimal", [".", ","])
def test_another_separator_is_named(
    tmp_path: Path, separator: str, name: str, decimal: str, target: str | None
) -> None:
    FRAME.to_csv(tmp_path / "t.csv", index=False, sep=separator, decimal=decimal)
    assert f"separated by {name}, but commas were expected" in sentence_of(tmp_path / "t.csv", target)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_another_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    sentence = sentence_of(written(tmp_path / "t.csv", "a,y\n1,u\n2,v\n", encoding))
    assert "UTF-16, but UTF-8 was expected" in sentence


def test_a_mark_of_the_order_of_bytes_is_no_part_of_a_name(tmp_path: Path) -> None:
    table = forde.data.load(written(tmp_path / "t.csv", "a,y\n1,u\n2,v\n", "utf-8-sig"))
    assert isinstance(table, forde.data.Table) and table.feature_names == ("a",)
