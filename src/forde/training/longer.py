"""A run that is given more epochs than it was started with: whether it comes to what the longer run would have been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from forde.errors import FordeError
from forde.training.changes import first_change
from forde.training.configuration import first_difference

FIRST = "first_epochs"
"""Where the settings of a run that was made longer have the number of epochs that it was started with."""
Fixed = Callable[[int], str | None]
"""Why a run of so many epochs cannot become a longer one; None where it can."""


def epochs_of(settings: dict[str, Any]) -> int | None:
    """How many epochs a run was to have; None where damaged settings do not say so.

    >>> epochs_of({"training": {"epochs": 10}})
    10
    """
    training = settings.get("training")
    epochs = training.get("epochs") if isinstance(training, dict) else None
    return epochs if type(epochs) is int else None


def with_epochs(settings: dict[str, Any], epochs: int) -> dict[str, Any]:
    """The settings of a run, with another number of epochs.

    >>> with_epochs({"training": {"epochs": 10, "seed": 0}}, 20)
    {'training': {'epochs': 20, 'seed': 0}}
    """
    return {**settings, "training": {**settings["training"], "epochs": epochs}}


def made_longer(
    folder: Path, stored: dict[str, Any], given: dict[str, Any], *, epochs: int, fixed: Fixed, lost: bool
) -> dict[str, Any]:
    """What the settings of the run become; an error says why it cannot go on.

    Args:
        stored: all that is in the file.
        given: settings that decide the result, with the new number of epochs.
        lost: whether the run is finished and its last checkpoint gone.
    """
    before = epochs_of(stored)
    assert before is not None
    started_with, as_before = {key: stored.get(key) for key in given}, with_epochs(given, before)
    difference = first_difference(started_with, as_before)
    why = fixed(before) or fixed(epochs)
    if why is None and difference is not None and difference[0].startswith("training.scheduler"):
        why = f"its schedule was another one ({difference[0]})"
    if why is None and lost:
        why = "its last checkpoint was not kept"
    if why is not None:
        raise FordeError(
            f"'{folder}' was started with training.epochs = {before} and cannot go on to {epochs}, for {why}; load its "
            "ensemble and train that further in another folder, with a learning rate of your choice."
        )
    if (change := first_change(started_with, as_before)) is not None:
        raise FordeError(f"'{folder}' was started with {change}.")
    return {**with_epochs(stored, epochs), FIRST: stored.get(FIRST, before)}
