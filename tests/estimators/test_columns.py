"""Tables with text, categories and gaps, as data scientists have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

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
    np.testing.assert_allclose(model.predict([[np.nan, 0.3]]), model.predict([[X[:, 0].mean(), 0.3]]))


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
