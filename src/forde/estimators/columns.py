"""Tables as people have them: text, categories and gaps are made into numbers by scikit-learn's transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from forde.errors import FordeError, unknown_name

Preprocessor = Any
"""A `SimpleImputer` for arrays and tables of numbers, a `ColumnTransformer` where there is text."""

MOST_CATEGORIES = 20
"""Columns that a column of text becomes; what is rarer shares the last one."""
NUMBERS = "numbers"


def checked(preprocessing: str | None) -> str | None:
    """What was asked for, or the error for what there is not."""
    if preprocessing is not None and preprocessing != "auto":
        raise unknown_name("feature_preprocessing", preprocessing, ("auto",))
    return preprocessing


def has_text(X: Any) -> bool:
    """Whether it is a data frame with columns that are no numbers."""
    return hasattr(X, "dtypes") and hasattr(X, "iloc") and not all(_is_number(X.iloc[:, i]) for i in range(X.shape[1]))


def refuse_text(X: Any) -> None:
    """Stop where text would have to be a number."""
    if has_text(X):
        name = next(X.columns[i] for i in range(X.shape[1]) if not _is_number(X.iloc[:, i]))
        raise FordeError(
            f"column '{name}' holds text, but numbers were expected; pass feature_preprocessing='auto', or make "
            "numbers of it in a pipeline, as with sklearn.preprocessing.OneHotEncoder."
        )


def make_preprocessor(X: Any) -> Preprocessor:
    """For rows `[N, D]`: an array with gaps, or a data frame that has text too.

    Gaps in numbers are filled with the column's mean, and a column beside says where they were. Text and categories
    become a column of 0 and 1 for each value; one that was not there in training has 0 in all, or counts as a rare one.
    """
    numbers = SimpleImputer(add_indicator=True, keep_empty_features=True)
    if not has_text(X):
        return numbers
    number_at = [i for i in range(X.shape[1]) if _is_number(X.iloc[:, i])]
    text_at = [i for i in range(X.shape[1]) if i not in number_at]
    for i in text_at:
        _refuse_dates(X.iloc[:, i])
    of_text = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=MOST_CATEGORIES, sparse_output=False, dtype=np.float64
    )
    return ColumnTransformer([*((f"text {i}", of_text, [i]) for i in text_at), (NUMBERS, numbers, number_at)])


def origins(preprocessor: Preprocessor | None, n_features: int) -> NDArray[np.intp]:
    """The column of the table that each column after preprocessing comes from `[D']`.

    >>> origins(SimpleImputer(add_indicator=True).fit([[1.0, np.nan], [2.0, 3.0]]), 2)
    array([0, 1, 1])
    """
    if preprocessor is None:
        return np.arange(n_features)
    if isinstance(preprocessor, SimpleImputer):
        gaps = () if preprocessor.indicator_ is None else preprocessor.indicator_.features_
        return np.concatenate([np.arange(n_features), np.asarray(gaps, dtype=np.intp)])
    found = np.empty(max(part.stop for part in preprocessor.output_indices_.values()), dtype=np.intp)
    for name, transformer, columns in preprocessor.transformers_:
        if name in preprocessor.output_indices_ and len(columns):
            own = origins(transformer, len(columns)) if name == NUMBERS else 0
            found[preprocessor.output_indices_[name]] = np.asarray(columns)[own]
    return found


def _is_number(column: Any) -> bool:
    if column.dtype.kind == "O":  # numbers that pandas holds as objects, as in rows of mixed types
        return all(isinstance(value, (int, float, np.number)) or value is None for value in column)
    return column.dtype.kind in "biuf"


def _refuse_dates(column: Any) -> None:
    if column.dtype.kind in "mM":
        raise FordeError(
            f"column '{column.name}' holds dates or durations, and only you know what counts of them; make it numbers, "
            f"as in table['{column.name}'].dt.dayofyear, or leave it out."
        )
