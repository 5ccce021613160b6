"""Likelihoods by name, and from what is saved of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from forde.errors import FordeError, unknown_name
from forde.likelihoods.base import Likelihood
from forde.likelihoods.binary import Binary, MultiLabel
from forde.likelihoods.classification import Classification
from forde.likelihoods.custom import Custom
from forde.likelihoods.dense import DenseClassification
from forde.likelihoods.regression import LearnedNoiseRegression, Regression

NAMED: dict[str, type[Likelihood]] = {
    each.name: each
    for each in (Classification, Binary, MultiLabel, DenseClassification, Regression, LearnedNoiseRegression)
}
"""The likelihoods that have a name."""


def as_likelihood(value: str | Likelihood | Callable[[Tensor, Tensor], Tensor]) -> Likelihood:
    """A likelihood from its name, from a loss function, or as it is.

    >>> as_likelihood("regression")
    Regression(noise=1.0)
    """
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            raise unknown_name("likelihood", value, NAMED)
        return NAMED[value]()
    if not callable(value):
        raise FordeError(
            f"likelihood is {value!r}, but one of {', '.join(sorted(NAMED))}, a Likelihood or a loss function was "
            "expected."
        )
    return Custom(value)


def likelihood_from_config(config: dict[str, Any]) -> Likelihood:
    """Inverse of `Likelihood.config`; an own loss comes back as one that can predict but not train."""
    options = dict(config)
    name = options.pop("name", None)
    if name == Custom.name:
        prediction = options.get("prediction")
        return Custom(_lost_loss, prediction=prediction if prediction in ("classification", "raw") else None)
    if name not in NAMED:
        raise unknown_name("likelihood", name, NAMED)
    try:
        return NAMED[name](**options)
    except TypeError:
        raise FordeError(f"the likelihood settings {options} do not fit '{name}'; the file was altered.") from None


def _lost_loss(output: Tensor, y: Tensor) -> Tensor:
    raise FordeError(
        "this ensemble was trained with its own loss function, which is not stored in files; "
        "pass likelihood=your_function to Ensemble.load before training it further."
    )
