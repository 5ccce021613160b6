"""Tables as people have them: text, categories and gaps are made into numbers by scikit-learn's transformers."""

from __future__ import annotations

import warnings
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from forde.data.csv_header import is_number
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


def is_frame(X: Any) -> bool:
    """Whether it is a data frame: of pandas, polars, or one that is used like these."""
    if type(X).__name__ == "LazyFrame":
        raise FordeError("X is a LazyFrame, which holds no rows yet; pass X.collect().")
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def has_text(X: Any) -> bool:
    """Whether it is a data frame with columns that are no numbers."""
    return is_frame(X) and any(_is_text(_column(X, i)) for i in range(X.shape[1]))


def refuse_text(X: Any) -> None:
    """Stop where text would have to be a number."""
    if has_text(X):
        name = next(X.columns[i] for i in range(X.shape[1]) if _is_text(_column(X, i)))
        raise FordeError(
            f"column '{name}' holds text, but numbers were expected; pass feature_preprocessing='auto', or make "
            "numbers of it in a pipeline, as with sklearn.preprocessing.OneHotEncoder."
        )
    is_array = isinstance(X, np.ndarray) and X.dtype.kind in "OU"
    values = np.asarray(X, dtype=object) if is_array or isinstance(X, (list, tuple)) else np.empty(0)
    text = next((value for value in values.flat if isinstance(value, str) and not is_number(value)), None)
    if text is not None:
        raise FordeError(
            f"X holds text, such as '{text}', but an array of numbers was expected; pass a data frame, as "
            "pandas.DataFrame(X), whose columns of text become numbers."
        )


def make_preprocessor(X: Any) -> Preprocessor:
    """For rows `[N, D]`: an array with gaps, or a data frame that has text too.

    Gaps in numbers are filled with the column's mean, and a column beside says where they were. Text and categories
    become a column of 0 and 1 for each value; one that was not there in training has 0 in all, or counts as a rare one.
    """
    numbers = SimpleImputer(add_indicator=True, keep_empty_features=True)
    if has_text(X):
        text_at = [i for i in range(X.shape[1]) if _is_text(_column(X, i))]
        number_at = [i for i in range(X.shape[1]) if i not in text_at]
        for i in text_at:
            _refuse_identifiers(_column(X, i))
        parts = [(f"text {i}", make_pipeline(_text(), _encoder()), [i]) for i in text_at]
        from_frame = FunctionTransformer(as_numbers, feature_names_out="one-to-one")
        parts += [(NUMBERS, make_pipeline(from_frame, numbers), number_at)]
        numbers = ColumnTransformer(parts, verbose_feature_names_out=False)
    # Whatever scikit-learn is told to give its users, what is made here goes on to torch.
    return numbers.set_output(transform="default")


def _text() -> FunctionTransformer:
    return FunctionTransformer(as_text, feature_names_out="one-to-one")


def _encoder() -> OneHotEncoder:
    return OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=MOST_CATEGORIES, sparse_output=False, dtype=np.float64
    )


def as_numbers(X: Any) -> NDArray[np.float64]:
    """A data frame's columns `[N, D]` as they are, NaN where something is missing."""
    found = np.full(X.shape, np.nan)
    for i in range(X.shape[1]):
        column = _column(X, i)
        values, there = _values(column)
        if _is_text(column) and there.any():
            raise FordeError(
                f"column '{column.name}' holds text, such as '{values[there][0]}', but held numbers in training; pass "
                "numbers."
            )
        found[there, i] = values[there].astype(np.float64)
    return found


def as_text(X: Any) -> NDArray[np.object_]:
    """A data frame's columns `[N, D]` as strings, None where something is missing; 1 and 1.0 are both '1'."""
    found = np.full(X.shape, None, dtype=object)
    for i in range(X.shape[1]):
        column = _column(X, i)
        _is_text(column)  # refuses what is neither text nor number
        values, there = _values(column)
        found[there, i] = [_said(value) for value in values[there].tolist()]
    return found


def warn_of_new_values(preprocessor: ColumnTransformer, X: Any) -> None:
    """One line where a column of text has values that training has not seen."""
    for name, transformer, columns in preprocessor.transformers_:
        if not isinstance(transformer, Pipeline) or name == NUMBERS:
            continue
        texts = as_text(_part(X, columns))[:, 0]
        new = sorted(set(texts) - {*transformer[-1].categories_[0], None})
        if new:
            of = "the rare values" if transformer[-1].infrequent_categories_[0] is not None else "none of its values"
            warnings.warn(
                f"column '{X.columns[columns[0]]}' has a value that was not there in training, '{new[0]}'"
                f"{f' (and {len(new) - 1} more)' if len(new) > 1 else ''}; it counts as {of}.",
                stacklevel=2,
            )


def warn_of_new_gaps(preprocessor: Preprocessor, X: Any) -> None:
    """One line where a column of numbers has gaps, and had none in training."""
    imputer, columns = preprocessor, list(range(X.shape[1]))
    if isinstance(preprocessor, ColumnTransformer):
        found = next((each for each in preprocessor.transformers_ if each[0] == NUMBERS), None)
        if found is None or not len(found[2]):
            return
        imputer, columns = found[1][-1], list(found[2])
    known = () if imputer.indicator_ is None else imputer.indicator_.features_
    numbers = as_numbers(_part(X, columns)) if is_frame(X) else X
    gaps = np.isnan(numbers).any(0)
    new = [columns[i] for i in np.flatnonzero(gaps) if i not in known]
    if new:
        name = f"'{X.columns[new[0]]}'" if is_frame(X) else str(new[0])
        others = f" (and so have {len(new) - 1} more)" if len(new) > 1 else ""
        warnings.warn(
            f"column {name} has gaps, but had none in training{others}; they are filled with its mean.", stacklevel=2
        )


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
            own = origins(transformer[-1], len(columns)) if name == NUMBERS else 0
            found[preprocessor.output_indices_[name]] = np.asarray(columns)[own]
    return found


def _column(X: Any, i: int) -> Any:
    """A column of a data frame, as pandas or polars gives it."""
    return X.iloc[:, i] if hasattr(X, "iloc") else X[:, i]


def _part(X: Any, columns: list[int]) -> Any:
    return X.iloc[:, columns] if hasattr(X, "iloc") else X[:, columns]


def _values(column: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A column's values `[N]`, and which are there `[N]`."""
    if str(column.dtype) == "category":  # of pandas, whose integers would become floats beside a gap
        column = column.astype(object)
    missing = (column.isna() if hasattr(column, "isna") else column.is_null()).to_numpy()
    values = np.asarray(column.to_numpy())
    if values.dtype.kind == "f":
        missing = missing | np.isnan(values)
    return values, ~missing.astype(bool)


def _is_text(column: Any) -> bool:
    """Whether a column is text or categories, and not numbers; an error for anything else."""
    dtype = str(column.dtype).lower()
    if dtype.startswith(("category", "categorical", "enum")):
        return True
    values, there = _values(column)
    if values.dtype.kind in "mM":
        raise FordeError(
            f"column '{column.name}' holds dates or durations, and only you know what counts of them; make it numbers, "
            f"as in table['{column.name}'].dt.dayofyear, or leave it out."
        )
    if values.dtype.kind in "biuf":
        return False
    # Objects: text, or numbers that are held as such because of gaps or of rows of mixed types.
    first: dict[type, Any] = {}
    for value in values[there].tolist():
        first.setdefault(type(value), value)
    texts = [value for value in first.values() if isinstance(value, str)]
    numbers = [value for value in first.values() if isinstance(value, (Real, Decimal))]
    others = [value for value in first.values() if not isinstance(value, (str, Real, Decimal))]
    if others:
        raise FordeError(
            f"column '{column.name}' holds values of type {type(others[0]).__name__}, such as {str(others[0])[:40]}, "
            "but numbers, text or categories were expected; make it one of these, or leave it out."
        )
    if texts and numbers:
        raise FordeError(
            f"column '{column.name}' mixes text and numbers, such as '{texts[0]}' and {numbers[0]}; make it one of "
            f"them, as table['{column.name}'].astype(str) does."
        )
    return bool(texts) or (not numbers and dtype.startswith("str"))


def _refuse_identifiers(column: Any) -> None:
    """Stop at text that differs in most rows, as dates, names and numbers of orders do: it says nothing of others.

    A category is what somebody made one, and may have as many values.
    """
    if str(column.dtype).lower().startswith(("category", "categorical", "enum")):
        return
    values, there = _values(column)
    different = len(set(values[there].tolist()))
    if 2 * different > len(values) > MOST_CATEGORIES:
        raise FordeError(
            f"column '{column.name}' has {different:,} different texts in {len(values):,} rows, such as "
            f"'{str(values[there][0])[:40]}', which says nothing of other rows; make numbers of it (of dates, say), or "
            "leave it out."
        )


def _said(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
