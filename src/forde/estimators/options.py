"""What the estimators can be asked for: each option is checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from forde.errors import FordeError
from forde.methods import Method


def _counts(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and 0 < float(value) < float("inf")


def _is_switch(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _are_weights(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(weight, Real) and 0 <= float(weight) < float("inf") for weight in value.values())
    return value is None or (isinstance(value, str) and value == "balanced")


COUNT = (_counts, "a whole number of at least 1")
SWITCH = (_is_switch, "True or False")
EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n_estimators": COUNT,
    "class_weight": (_are_weights, "'balanced', a dict with a number from 0 for each label, or None"),
    "method": (lambda value: isinstance(value, (str, Method)), "a name from forde.methods() or a forde.Method"),
    "method_options": (lambda value: value is None or isinstance(value, Mapping), "a dict of the method's options"),
    "hidden": (
        lambda value: isinstance(value, Iterable) and all(map(_counts, value)),
        "a sequence of layer sizes, as in (64, 64),",
    ),
    "batch_norm": SWITCH,
    "network": (lambda value: value is None or callable(value), "a function (n_inputs, n_outputs) → network"),
    "epochs": COUNT,
    "repulsion_every": COUNT,
    "batch_size": (
        lambda value: value == "auto" if isinstance(value, str) else _counts(value),
        f"'auto' or {COUNT[1]}",
    ),
    "lr": (_is_positive, "a positive number"),
    "weight_decay": (lambda value: isinstance(value, Real) and float(value) >= 0, "0 or a positive number"),
    "n_jobs": (
        lambda value: value is None or (isinstance(value, Integral) and value != 0),
        "None, a number of threads, or -1 for one on each core,",
    ),
    "validation_fraction": (
        lambda value: isinstance(value, Real) and 0 < float(value) < 1,
        "a share between 0 and 1, such as 0.1,",
    ),
    "early_stopping": SWITCH,
    "n_iter_no_change": COUNT,
    "warm_start": SWITCH,
    "verbose": (lambda value: _is_switch(value) or isinstance(value, Integral), SWITCH[1]),
}
"""Option → whether a value is right, and what is expected; options that others check by name are not here."""


def check_options(estimator: BaseEstimator) -> None:
    """Stop at the first option that nothing could be trained with.

    >>> from forde import FordeRegressor
    >>> check_options(FordeRegressor(validation_fraction=2))
    Traceback (most recent call last):
    forde.errors.FordeError: validation_fraction is 2, but a share between 0 and 1, such as 0.1, was expected.
    """
    for name, value in estimator.get_params(deep=False).items():
        right, expected = EXPECTED.get(name, (None, ""))
        if right is not None and not right(value):
            raise FordeError(f"{name} is {value!r}, but {expected} was expected.")
