"""What commands that train make of their options before the first step: data, network and method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from torch import nn

from forde.commands.opening import imported
from forde.commands.settings_file import given
from forde.data.description import Images, Table
from forde.data.loading import load
from forde.data.matching import matching
from forde.errors import FordeError
from forde.methods import Method, method
from forde.models.building import MODELS
from forde.training.options import Validation
from forde.training.recipe import Recipe
from forde.training.splitting import held_out, without_test
from forde.training.trained import names_of


@dataclass(frozen=True)
class Prepared:
    """Data and network of a training."""

    data: Images | Table
    """The training split in its own units, less what is held out."""
    validation: Images | Table | None
    recipe: Recipe
    make_network: Callable[[], nn.Module]

    @property
    def standard(self) -> Images | Table:
        """The training data as members see it."""
        return self.recipe.in_standard_units(self.data)

    def judged_by(self, monitor: str | None, patience: int | None) -> Validation | None:
        """How training is judged, if there is data for it."""
        if self.validation is None:
            return None
        return Validation(self.recipe.in_standard_units(self.validation), monitor or "nll", patience)


def loaded(
    data: str, data_dir: Path | None, *, target: str | None, task: str | None, drop: str | None, augment: bool
) -> Images | Table:
    """The training split; text and gaps of a table are made numbers."""
    dropped = names_of(drop)
    found = load(data, "train", data_dir, target=target, task=task, encode=True, drop=dropped)  # type: ignore[arg-type]
    if augment and not isinstance(found, Images):
        raise FordeError(f"--augment needs images, but '{data}' is a table; leave it out.")
    return found


def parted(data: Images | Table, share: float | None, *, name: str, seed: int) -> tuple[Any, Any]:
    """The training data less what is held out to test on, and that, or None where nothing is."""
    if share is None:
        return data, None
    if not 0 < share < 1:
        raise FordeError(f"--test is {share:g}, but a share between 0 and 1 was expected, as in 0.2.")
    if "test" in data.description.splits:
        raise FordeError(f"'{name}' has a test split of its own, which forde evaluate takes; leave --test out.")
    return without_test(data, share, seed=seed)


def prepared(
    data: Images | Table,
    *,
    name: str,
    data_dir: Path | None,
    model: str,
    hidden: str,
    validation: str | None,
    seed: int,
) -> Prepared:
    """A network for the data, and data to validate with.

    Args:
        name: of the data, as it was typed.
        validation: a share of the training data, a split, or other data.
    """
    own = model not in MODELS and (":" in model or "." in model)  # with a dot it is said what was expected
    make = imported(model) if own else None
    share = _share(validation)
    part, held = data, None
    if share is not None:  # before anything is computed of the data, so that it is held out of the statistics too
        part, held = held_out(data, share, seed=seed, by_class=bool(data.description.n_classes))
    recipe = Recipe.of(part, model, widths(hidden))
    if share is None and validation is not None:
        split = _split(validation)
        held = matching(recipe.inputs, name if split else validation, split, data_dir)
    return Prepared(part, held, recipe, make or recipe.make_network)


def chosen_method(ctx: typer.Context, name: str, **options: Any) -> Method:
    """A method with the options that were given, those under `method.` in a file or `--set` among them."""
    own = {key: as_option(value) for key, value in given(ctx).own.items()}
    return method(name, **{key: value for key, value in {**own, **options}.items() if value is not None})


def widths(hidden: str) -> list[int]:
    """Of hidden layers.

    >>> widths("128,64")
    [128, 64]
    """
    try:
        return [int(width) for width in hidden.split(",") if width]
    except ValueError:
        raise FordeError(f"--hidden is '{hidden}', but widths as in 128,128 were expected.") from None


def _share(validation: str | None) -> float | None:
    try:
        share = None if validation is None else float(validation)
    except ValueError:
        return None
    if share is not None and not 0 < share < 1:
        raise FordeError(f"--validation is {validation}, but a share between 0 and 1 was expected, as in 0.2.")
    return share


def _split(validation: str) -> str | None:
    """The split of the data set, where it is one and not other data."""
    return validation if validation in ("valid", "val", "validation", "test") else None


def as_option(value: Any) -> Any:
    """A value from YAML, which takes 1e-4 for text.

    >>> as_option("1e-4"), as_option("logit")
    (0.0001, 'logit')
    """
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
