"""Tables with text, categories and gaps, as data scientists have them."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from forde import FordeClassifier, FordeError, FordeRegressor
from forde.estimators.columns import MOST_CATEGORIES, make_preprocessor, origins

QUICK: dict[str, Any] = {
    "n_estimators": 2, "hidden": (8,), "epochs": 20, "batch_size": 32, "method": "deep-ensemble", "random_state": 0,
}  # fmt: skip


def people(n: int = 120, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Who buys is decided by the city alone, and by whether the age is known."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.3, np.nan, rng.normal(40, 10, n)),
            "city": rng.choice(["Espoo", "Oulu", "Turku"], n),
            "member": rng.random(n) < 0.5,
            "size": pd.Categorical(rng.choice(["S", "M"], n)),
            "children": pd.array(rng.integers(0, 4, n), dtype="Int64"),
        }
    )
    return table, ((table["city"] == "Oulu") ^ table["age"].isna()).to_numpy()


def test_text_and_gaps_count() -> None:
    table, bought = people()
    model = FordeClassifier(**{**QUICK, "epochs": 40}).fit(table, bought)
    new, expected = people(seed=1)
    assert model.score(new, expected) > 0.9
    assert list(model.feature_names_in_) == list(table.columns) and model.n_features_in_ == 5
    assert model.ensemble_.members[0].body[0].in_features == 3 + 2 + 4  # cities, sizes, numbers with one indicator


@pytest.mark.parametrize("as_frame", [True, False])
def test_gaps_in_numbers(as_frame: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    X[rng.random((80, 3)) < 0.2] = np.nan
    given = pd.DataFrame(X, columns=list("abc")) if as_frame else X
    model = FordeRegressor(**QUICK).fit(given, np.isnan(X[:, 0]).astype(float))
    assert model.score(given, np.isnan(X[:, 0]).astype(float)) > 0.8, "that a value is missing says something"
    assert np.isfinite(model.predict(given)).all()


def test_gaps_that_were_not_there_in_training_are_filled_with_the_mean() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = FordeRegressor(**QUICK).fit(X, X[:, 0])
    with pytest.warns(UserWarning, match="column 0 has gaps, but had none in training; they are filled with its mean"):
        filled = model.predict([[np.nan, 0.3]])
    np.testing.assert_allclose(filled, model.predict([[X[:, 0].mean(), 0.3]]))


def test_new_and_rare_values() -> None:
    table, bought = people()
    model = FordeClassifier(**QUICK).fit(table, bought)
    new = table.iloc[:3].assign(city=["Vaasa", "Vaasa", "Rauma"])
    with pytest.warns(
        UserWarning, match="'city' has a value .* 'Rauma' \\(and 1 more\\); it counts as none of its values"
    ):
        found = model.predict_proba(new)
    assert np.isfinite(found).all()
    many = table.assign(city=[f"village {i % 60}" for i in range(120)])
    rare = FordeClassifier(**QUICK).fit(many, bought)
    assert rare.ensemble_.members[0].body[0].in_features == MOST_CATEGORIES + 2 + 4
    with pytest.warns(UserWarning, match="'Vaasa'; it counts as the rare values"):
        rare.predict(many.assign(city="Vaasa"))


def test_columns_are_known_by_name() -> None:
    table, bought = people()
    model = FordeClassifier(**QUICK).fit(table, bought)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename(columns={"age": "years"}))
    with pytest.raises(FordeError, match="pass a data frame with the same columns"):
        model.predict(table.to_numpy())
    with pytest.raises(NotFittedError):
        FordeClassifier().predict(table)


def test_what_is_refused() -> None:
    table, bought = people()
    with pytest.raises(FordeError, match=r"'when' holds dates.*table\['when'\].dt.dayofyear"):
        FordeClassifier(**QUICK).fit(table.assign(when=pd.Timestamp("2020-01-01")), bought)
    with pytest.raises(FordeError, match="unknown feature_preprocessing 'yes'"):
        FordeClassifier(**QUICK, feature_preprocessing="yes").fit(table, bought)
    with pytest.raises(FordeError, match=r"column 'city' holds text.*feature_preprocessing='auto'"):
        FordeClassifier(**QUICK, feature_preprocessing=None).fit(table, bought)
    with pytest.raises(ValueError, match="NaN"):
        FordeClassifier(**QUICK, feature_preprocessing=None).fit(table[["age"]], bought)
    with pytest.raises(ValueError, match="infinity"):
        FordeClassifier(**QUICK).fit(table.assign(age=np.inf), bought)


def test_where_columns_come_from() -> None:
    table, _ = people()
    preprocessor = make_preprocessor(table).fit(table)
    found = origins(preprocessor, 5)
    assert len(found) == preprocessor.transform(table).shape[1]
    names = list(preprocessor.get_feature_names_out())
    assert names == [
        *("city_Espoo", "city_Oulu", "city_Turku", "size_M", "size_S"),
        *("age", "member", "children", "missingindicator_age"),
    ]
    assert [table.columns[i] for i in found] == [
        next(column for column in table.columns if column in name) for name in names
    ]


def test_a_table_of_numbers_stays_what_it_is() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    plain = FordeRegressor(**QUICK, feature_preprocessing=None).fit(X, y)
    np.testing.assert_array_equal(
        plain.predict(X), FordeRegressor(**QUICK).fit(pd.DataFrame(X), y).predict(pd.DataFrame(X))
    )


@pytest.mark.parametrize(
    "given",
    [
        pd.array([1, None, 3] * 40, dtype="Int64"),
        pd.array([True, None, False] * 40, dtype="boolean"),
        pd.Series([1, None, 2.5] * 40, dtype=object),
        pd.Series([1, pd.NA, True] * 40, dtype=object),
        pd.Series([Decimal("1.5"), None, Decimal(2)] * 40),
        pd.array([1, None, 3] * 40, dtype="int64[pyarrow]"),
    ],
    ids=["Int64", "boolean", "objects", "objects with NA", "decimals", "arrow"],
)
def test_numbers_of_any_kind(given: Any) -> None:
    table, bought = people()
    model = FordeClassifier(**QUICK).fit(table.assign(given=given), bought)
    assert "missingindicator_given" in model.preprocessor_.get_feature_names_out()
    numbers = model.preprocessor_.transform(table.assign(given=given))
    expected = [np.nan if value is None or value is pd.NA else float(value) for value in given]
    place = list(model.preprocessor_.get_feature_names_out()).index("given")
    np.testing.assert_allclose(numbers[:, place], np.where(np.isnan(expected), np.nanmean(expected), expected))
    alone = FordeClassifier(**QUICK).fit(pd.DataFrame({"given": given, "age": table["age"]}), bought)
    assert not hasattr(alone.preprocessor_, "transformers_"), "no text"


@pytest.mark.parametrize(
    "given",
    [
        pd.array(["a", pd.NA, "b"] * 40, dtype="string"),
        pd.array(["a", None, "b"] * 40, dtype="string[pyarrow]"),
        pd.Series(["a", None, "b"] * 40, dtype=object),
        pd.Categorical(["a", None, "b"] * 40),
        pd.Categorical([1, None, 2] * 40),
    ],
    ids=["string", "arrow", "objects", "categories", "categories of integers"],
)
def test_text_of_any_kind(given: Any) -> None:
    """A gap is a value of its own, and a single row may have nothing else."""
    table, bought = people()
    table = table.assign(city=given)
    model = FordeClassifier(**QUICK).fit(table, bought)
    assert model.ensemble_.members[0].body[0].in_features == 3 + 2 + 4
    together = model.predict_proba(table)
    for row in range(3):
        np.testing.assert_allclose(model.predict_proba(table.iloc[[row]]), together[[row]], rtol=1e-10)
    gap = pd.DataFrame({**table.iloc[[1]].to_dict("list"), "city": [np.nan]})
    np.testing.assert_allclose(model.predict_proba(gap), together[[1]], rtol=1e-10)


def test_categories_of_integers_are_known_without_their_type() -> None:
    table, bought = people()
    table = table.assign(floor=pd.Categorical([1, 2, 3] * 40))
    model = FordeClassifier(**QUICK).fit(table, bought)
    for floor in ([1, 2, 3], [1.0, 2.0, 3.0], ["1", "2", "3"]):
        np.testing.assert_array_equal(model.predict_proba(table.assign(floor=floor * 40)), model.predict_proba(table))


def test_polars_frames() -> None:
    table, bought = people()
    table["children"] = table["children"].astype(float)
    polars = pytest.importorskip("polars")
    same = polars.from_pandas(table)
    model, expected = FordeClassifier(**QUICK).fit(same, polars.Series(bought)), FordeClassifier(**QUICK)
    expected.fit(table, bought)
    assert list(model.feature_names_in_) == list(table.columns)
    np.testing.assert_array_equal(model.predict_proba(same), expected.predict_proba(table))
    np.testing.assert_array_equal(model.predict_proba(table), expected.predict_proba(same))
    np.testing.assert_array_equal(model.feature_importances_, expected.feature_importances_)
    with pytest.raises(ValueError, match="same order"):
        model.predict(same.select(sorted(same.columns)))
    with pytest.raises(FordeError, match=r"LazyFrame, which holds no rows yet; pass X\.collect\(\)"):
        model.predict(same.lazy())
    regressor = FordeRegressor(**QUICK).fit(same, same["children"], polars.Series([1.0, 2.0] * 60))
    assert regressor.predict_interval(same)[0].shape == (120,)


def test_other_columns_than_in_training() -> None:
    table, bought = people()
    numbers = table[["age", "member"]]
    for train in (table, numbers):
        model = FordeClassifier(**QUICK).fit(train, bought)
        for given, message in (
            (train[train.columns[::-1]], "must be in the same order"),
            (train.drop(columns="age"), "now missing"),
            (train.assign(new=1.0), "unseen at fit time"),
            (train.assign(age="forty"), "column 'age' holds text, such as 'forty', but held numbers in training"),
        ):
            with pytest.raises(ValueError, match=message):
                model.predict(given)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(numbers.to_numpy(dtype=float))


@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_what_scikit_learn_gives_its_users_does_not_matter(output: str) -> None:
    pytest.importorskip(output)
    table, bought = people()
    expected = FordeClassifier(**QUICK).fit(table, bought).predict_proba(table)
    with sklearn.config_context(transform_output=output):
        model = FordeClassifier(**QUICK).fit(table, bought)
        np.testing.assert_array_equal(model.predict_proba(table), expected)
        X = table[["age", "member"]].fillna(40)
        pipeline = make_pipeline(StandardScaler(), FordeRegressor(**QUICK)).fit(X, X["age"])
        assert pipeline.predict(X).shape == (120,) and list(pipeline[-1].feature_names_in_) == ["age", "member"]


def test_what_is_neither_text_nor_number_is_named() -> None:
    table, bought = people()
    for column, message in (
        (pd.Series([1, "a"] * 60, dtype=object), r"'new' mixes text and numbers, such as 'a' and 1; .*astype\(str\)"),
        (pd.Series([[1]] * 120), r"'new' holds values of type list, such as \[1\]"),
        (pd.Series([1j] * 120), "'new' holds values of type complex"),
        (pd.Series([datetime.date(2020, 1, 1)] * 120), "'new' holds values of type date"),
        (pd.to_timedelta([1] * 120), "'new' holds dates or durations"),
    ):
        with pytest.raises(FordeError, match=message):
            FordeClassifier(**QUICK).fit(table.assign(new=column), bought)
    for X in (table[["city"]].to_numpy(), table[["city"]].to_numpy(dtype=str), table[["city"]].to_numpy().tolist()):
        with pytest.raises(FordeError, match=r"X holds text, such as '.*pass a data frame"):
            FordeClassifier(**QUICK).fit(X, bought)
    digits = np.array([["1", "2"], ["3", "5"]] * 20)
    assert FordeClassifier(**QUICK).fit(digits, [0, 1] * 20).score(digits, [0, 1] * 20) == 1, "numbers, if written"


@pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])
@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_text_that_differs_in_most_rows_is_refused(estimator: type, library: Callable[..., Any]) -> None:
    """A date that was read as text would become twenty categories, which say nothing of other days."""
    y = np.arange(40) % 2
    table = {"x": np.arange(40.0), "sold on": [f"2024-0{i % 9 + 1}-{i % 28 + 1:02}" for i in range(40)]}
    with pytest.raises(FordeError, match="column 'sold on' has 40 different texts in 40 rows, such as '2024-01-01'"):
        estimator(**QUICK).fit(library(table), y)
    few = library({**table, "sold on": [text[:7] for text in table["sold on"]]})
    estimator(**QUICK).fit(few, y)  # months repeat


@pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])
def test_gaps_that_training_had_none_of_are_said(estimator: type) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    X[::5, 0] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(d=["u", "v"] * 30)
    for table, name in ((X, "1"), (frame[["a", "b", "c"]], "'b'"), (frame, "'b'")):
        model = estimator(**QUICK).fit(table, y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict(table)  # gaps where training had some
        gone = table.copy()
        if isinstance(gone, np.ndarray):
            gone[3, 1:] = np.nan
        else:
            gone.iloc[3, 1:3] = np.nan
        with pytest.warns(UserWarning, match=f"column {name} has gaps, but had none in training .and so have 1 more"):
            model.predict(gone)
