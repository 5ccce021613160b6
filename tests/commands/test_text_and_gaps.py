"""Tables with text and gaps on the command line: what columns become, and that later rows become the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from executable import done, forde
from small_runs import SMALL, Forde, Result

import forde as library
from forde.data.encoding import Encoding
from forde.errors import FordeError

ROWS = 120
Call = Callable[..., Result]


def homes() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    area = draw.gamma(8, 10, ROWS).round(1)
    city = draw.choice(["Åbo", "New York, NY", "Oslo"], ROWS).astype(object)
    price = 3 * area + 50 * (city == "Oslo")
    area[draw.random(ROWS) < 0.1] = np.nan
    city[draw.random(ROWS) < 0.1] = None
    street = [f"{place % 30} street" for place in range(ROWS)]
    key = [f"H{place}" for place in range(ROWS)]
    built = draw.integers(1900, 2020, ROWS)
    return pd.DataFrame({"key": key, "area": area, "city": city, "street": street, "built": built, "price": price})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homes")
    homes().to_csv(folder / "homes.csv", index=False)
    said = done(
        "train", "--data", "homes.csv", "--out", "r", *SMALL, "--drop", "key", "--test", 0.2, "--seed", 1, cwd=folder
    )
    assert "rows of 27 features (made of 4 columns, 2 of text and 1 of numbers with gaps), standardised" in said
    return folder


def expected(frame: pd.DataFrame, fill: float) -> np.ndarray:
    """Rows as networks see them before they are standardised, by pandas."""
    streets = sorted(frame["street"].unique().tolist())
    counts = frame["street"].value_counts()
    kept = sorted(sorted(streets, key=lambda name: (-counts[name], name))[:19])
    columns = [frame["area"].fillna(fill), frame["area"].isna()]
    columns += [frame["city"] == name for name in ("New York, NY", "Oslo", "Åbo")] + [frame["city"].isna()]
    columns += [frame["street"] == name for name in kept] + [~frame["street"].isin(kept), frame["built"]]
    return np.column_stack([column.astype(np.float32) for column in columns])


def test_columns_are_what_pandas_makes_of_them(folder: Path) -> None:
    frame = pd.read_csv(folder / "homes.csv", keep_default_na=True)
    table = library.data.load(folder / "homes.csv", encode=True, drop=["key"])
    np.testing.assert_allclose(table.x, expected(frame, frame["area"].mean()), rtol=1e-6)
    assert table.feature_names[:6] == (
        "area", "area (missing)", "city=New York, NY", "city=Oslo", "city=Åbo", "city=(missing)"
    )  # fmt: skip
    assert table.feature_names[-2:] == ("street=(rare)", "built")


def test_the_same_rows_from_a_file_and_a_data_frame(folder: Path, tmp_path: Path) -> None:
    new = homes().drop(columns=["price", "key"])[["built", "street", "city", "area"]].iloc[:40]
    new.to_csv(tmp_path / "new.csv", index=False)
    new.to_parquet(tmp_path / "new.parquet")
    run = library.load_run(folder / "r")
    by_frame = run.predict(new)
    for name in ("new.csv", "new.parquet"):
        done("predict", folder / "r", tmp_path / name, "--out", tmp_path / f"{name}.out.csv")
        found = pd.read_csv(tmp_path / f"{name}.out.csv")
        np.testing.assert_allclose(found["mean"], by_frame.mean.numpy(), rtol=1e-5)
    polars = pytest.importorskip("polars")
    assert np.array_equal(run.predict(polars.from_pandas(new)).mean, by_frame.mean)


def test_evaluated_and_reported_with_the_names_of_values(folder: Path) -> None:
    told = json.loads(done("evaluate", folder / "r", "--corruptions", "all", "--severities", 1, "--json", "-"))
    assert told["data"]["samples"] == 24 and set(told["types"]) == {"gaussian_noise", "missing_values"}
    done("report", folder / "r", "--out", folder / "r.html")
    assert "city=Oslo" in (folder / "r.html").read_text(encoding="utf-8")


def test_a_new_value_is_said_and_counts_as_none_or_as_rare(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("area,city,street,built\n50,Rome,9 lane,1950\n60,Bern,,1960\n")
    result = forde("predict", folder / "r", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert result.returncode == 0 and result.stderr.count("\n") == 1
    assert "column 'city'" in result.stderr and "'Rome' (and 1 more); it counts as none of its values" in result.stderr
    encoding = library.load_run(folder / "r").inputs.encoding
    assert encoding is not None
    x = encoding.of_frame(pd.read_csv(tmp_path / "new.csv"))
    names = list(encoding.names)
    assert x[:, 2:6].sum() == 0 and x[0, names.index("street=(rare)")] == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"area": "large"}, "column 'area' in"),
        ({"built": None}, "column 'built' in"),
    ],
)
def test_rows_unlike_those_of_training(
    call: Call, folder: Path, tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    new = homes().assign(**change)
    new.to_csv(tmp_path / "new.csv", index=False)
    result = call("predict", folder / "r", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert result.code == 1 and complaint in result.err and result.err.count("\n") == 1
    with pytest.raises(FordeError, match=complaint):
        library.load_run(folder / "r").predict(new)


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        ({}, (), "homes.csv' has 120 different texts in 120 rows"),
        ({}, ("--drop", "kye"), "unknown column to drop 'kye'; did you mean 'key'?"),
        ({}, ("--drop", "key,price"), "'price' is the target"),
        ({"key": "2020-01-01"}, (), "homes.csv' holds dates or times, but numbers or text were expected"),
        ({"sold on": "2020-01-01"}, ("--drop", "key", "--target", "price"), "or leave it out (--drop 'sold on')"),
        ({"key": ""}, (), "is empty in every row; leave it out (--drop key)"),
        ({"key": ["x", *map(str, range(1, ROWS))]}, (), "holds numbers, but also text such as 'x'"),
    ],
)
def test_columns_that_teach_nothing(
    train: Forde, tmp_path: Path, change: dict[str, object], options: tuple[str, ...], complaint: str
) -> None:
    homes().assign(**change).to_csv(tmp_path / "homes.csv", index=False)
    result = train(tmp_path / "homes.csv", tmp_path / "r", *SMALL, *options)
    assert result.code == 1 and complaint in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_nothing_to_drop_among_images(train: Forde, tmp_path: Path) -> None:
    assert "leave drop out" in train("digits", tmp_path / "r", *SMALL, "--drop", "x").err


def test_a_table_encoded_by_another_file_is_refused(folder: Path, tmp_path: Path) -> None:
    homes().assign(area=lambda frame: 2 * frame["area"]).to_csv(tmp_path / "other.csv", index=False)
    other = library.data.load(tmp_path / "other.csv", encode=True, drop=["key"])
    with pytest.raises(FordeError, match="not as in training"):
        library.load_run(folder / "r").predict(other)


def test_without_text_and_gaps_nothing_is_encoded(tmp_path: Path) -> None:
    homes()[["built", "price"]].to_csv(tmp_path / "t.csv", index=False)
    plain, asked = (library.data.load(tmp_path / "t.csv", encode=encode) for encode in (False, True))
    assert asked.encoding is None and np.array_equal(plain.x, asked.x) and plain.feature_names == asked.feature_names


@pytest.mark.parametrize(
    "value",
    [None, [1], [{"name": "a"}], [{"name": 1, "fill": None, "values": None}],
     [{"name": "a", "fill": float("nan"), "values": None}], [{"name": "a", "fill": 1.0, "values": ["b"]}],
     [{"name": "a", "fill": None, "values": [1]}]],
)  # fmt: skip
def test_a_damaged_description_is_one_sentence(value: object) -> None:
    with pytest.raises(FordeError, match="damaged"):
        Encoding.from_json(value)


def test_a_table_in_another_encoding(train: Forde, tmp_path: Path) -> None:
    homes().drop(columns="key").to_csv(tmp_path / "homes.csv", index=False, encoding="latin-1")
    result = train(tmp_path / "homes.csv", tmp_path / "r", *SMALL)
    assert result.code == 1 and "holds bytes that are no text in UTF-8" in result.err
    assert "write the file again with encoding='utf-8'" in result.err and "leave it out" not in result.err


def test_a_column_that_counts_the_rows_is_said(train: Forde, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    homes().assign(key=np.arange(ROWS) + 1000).to_csv(tmp_path / "homes.csv", index=False)
    assert train(tmp_path / "homes.csv", tmp_path / "r", *SMALL).code == 0
    assert "column 'key'" in caplog.text and "counts the rows (1000, 1001, ...), and is used" in caplog.text
    caplog.clear()
    assert train(tmp_path / "homes.csv", tmp_path / "s", *SMALL, "--drop", "key").code == 0
    assert "counts the rows" not in caplog.text


@pytest.mark.parametrize(
    ("years", "options", "said"),
    [
        ([2018, 2020, 2021], (), True),  # not counted from 0 or 1
        ([1, 2, 3], (), False),
        ([2018, 2020, 2021], ("--task", "classification"), False),
    ],
)
def test_classes_that_may_be_a_quantity(
    train: Forde, tmp_path: Path, years: list[int], options: tuple[str, ...], said: bool
) -> None:
    homes().drop(columns="key").assign(year=np.resize(years, ROWS)).to_csv(tmp_path / "homes.csv", index=False)
    out = train(tmp_path / "homes.csv", tmp_path / "r", *SMALL, *options).out
    assert "the target 'year' is a class, one of 3" in out
    assert ("--task regression makes it a quantity" in out) == said
