"""`load_run`: a finished run of `forde train`, ready to predict in the units of its data."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forde import saving
from forde.data.checks import check_finite
from forde.data.description import Images, Table
from forde.ensemble import Ensemble
from forde.errors import FordeError, missing_column
from forde.prediction import Prediction
from forde.reading.files import MAX_SHOWN
from forde.training.recipe import Recipe
from forde.training.run_folder import CONFIG, ENSEMBLE

RECIPE = "recipe"
"""Under which `forde train` keeps it in the run's settings."""
MAX_CONFIG_BYTES = 1 << 26
"""Enough for the statistics of hundreds of thousands of columns."""
GIVEN = "the given rows"


@dataclass(frozen=True)
class TrainedRun:
    """An ensemble with what its data went through.

    Its `ensemble` works in standard units; `predict` takes rows and gives quantities as they are in the file.
    """

    ensemble: Ensemble
    recipe: Recipe

    def predict(self, x: Any, *, batch_size: int = 512) -> Prediction:
        """Predict for new data in its own units.

        Args:
            x: `forde.data.Images` or whatever `Ensemble.predict` takes for a run on images; for a run on a table a
                `forde.data.Table` or a data frame, whose columns are found by name, or rows `[N, D]` in the order of
                `recipe.features`.

        Returns:
            As `Ensemble.predict`: probabilities in the order of `recipe.classes`, or mean and variances in units of
            the target.
        """
        units = self.recipe.standardisation
        if units is None:
            return self.ensemble.predict(x, batch_size=batch_size)
        names = self.recipe.features
        standard = units.inputs(as_numbers(self._rows(x), names))
        check_finite(standard, names, GIVEN, _row)
        return units.undo(self.ensemble.predict(standard, batch_size=batch_size))

    def _rows(self, x: Any) -> np.ndarray:
        if isinstance(x, Images):
            raise FordeError("the ensemble was trained on a table, but images were given; give rows of that table.")
        names = x.feature_names if isinstance(x, Table) else getattr(x, "columns", None)
        try:
            values = np.asarray(x.x if isinstance(x, Table) else x)
        except ValueError:
            raise FordeError("the given rows differ in their number of values; give as many for each.") from None
        if names is None:
            return values
        place = {str(name): number for number, name in enumerate(names)}
        for name in self.recipe.features:
            if name not in place:
                raise missing_column("the given table", name, place)
        return values[:, [place[name] for name in self.recipe.features]]


def as_numbers(x: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Rows in float64; the error for anything else names its column and row.

    >>> as_numbers(np.array([[True, 2]], object), ["a", "b"])
    array([[1., 2.]])
    """
    if x.dtype.kind in "biuf":
        return x.astype(np.float64)
    if x.dtype.kind in "OSU":
        try:
            return x.astype(np.float64)
        except (TypeError, ValueError):
            raise _no_number(x, names) from None
    raise FordeError(f"{GIVEN} hold {x.dtype}, but numbers were expected; encode or drop it.")


def _no_number(x: np.ndarray, names: Sequence[str]) -> FordeError:
    """The error for the first value that is no number."""
    for row, values in enumerate(np.atleast_2d(x)):
        for name, value in zip(names, values, strict=False):
            try:
                float(value)
            except (TypeError, ValueError):
                shown = str(value)[:MAX_SHOWN]
                return FordeError(
                    f"column '{name}' in {GIVEN} has '{shown}' in {_row(row)}, but numbers were expected; encode or "
                    "drop it."
                )
    return FordeError(f"{GIVEN} hold something else than numbers; encode or drop it.")


def _row(row: int) -> str:
    return f"row {row + 1:,} (counted from 1)"


def load_run(folder: str | Path, *, device: str | torch.device = "cpu") -> TrainedRun:
    """What `forde train --run FOLDER` has trained, from its files alone.

    >>> import tempfile
    >>> import forde
    >>> table = forde.data.load("regression-1d")
    >>> recipe = Recipe.of(table, "mlp", [8])
    >>> ensemble = Ensemble(recipe.make_network, 2, likelihood=recipe.likelihood)
    >>> given = {"epochs": 1, "run": tempfile.mkdtemp(), "about": {RECIPE: recipe.to_json()}}
    >>> history = forde.fit(ensemble, "deep-ensemble", recipe.in_standard_units(table), lr=1e-3, **given)
    >>> load_run(given["run"]).predict([[0.5, 0.25]]).mean.shape
    torch.Size([1])
    """
    path = Path(folder)
    recipe = _recipe(path / CONFIG)
    if not (path / ENSEMBLE / saving.CONFIG).exists():
        raise FordeError(f"'{path}' has not finished; go on with forde train ... --run {path} --resume.")
    _refuse_other_sizes(recipe, path / ENSEMBLE)
    return TrainedRun(Ensemble.load(path / ENSEMBLE, recipe.make_network, device=device), recipe)


def _recipe(path: Path) -> Recipe:
    try:
        if not path.is_file():
            raise OSError("reading a pipe or a device would not end")
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError:
        raise FordeError(f"'{path}' cannot be read; expected the folder of a run of forde train.") from None
    try:
        settings = json.loads(content) if len(content) <= MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise FordeError(f"'{path}' is damaged; restore it, or train in another folder.")
    about = settings.get("about")
    if not isinstance(about, dict) or RECIPE not in about:
        raise FordeError(
            f"'{path}' does not say which network was trained, as forde train does; load the ensemble with "
            f"forde.Ensemble.load('{path.parent / ENSEMBLE}', make_network)."
        )
    try:
        return Recipe.from_json(about[RECIPE])
    except FordeError as error:
        raise FordeError(f"'{path}': {error}") from None


def _refuse_other_sizes(recipe: Recipe, folder: Path) -> None:
    """Before a network is built, which might fill the memory: it cannot have more parameters than bytes are stored."""
    try:
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in recipe.make_network().parameters())
    except RuntimeError:  # sizes whose product no tensor can have
        size = sys.maxsize
    try:
        stored = (folder / saving.WEIGHTS).stat().st_size
    except OSError:
        return  # Ensemble.load says what is missing
    if size > stored:
        raise FordeError(
            f"'{folder.parent / CONFIG}' describes a network of {size:,} parameters, but the ensemble beside it has "
            f"{stored:,} bytes; one of them was altered, so train again."
        )
