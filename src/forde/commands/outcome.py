"""What `forde train` says of the data before it begins, and of the loss when it has finished."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forde.commands.preparing import Prepared
from forde.data.description import Images, Table
from forde.errors import FordeError
from forde.training.constant import constant_loss, far_above

if TYPE_CHECKING:
    from forde.ensemble import Ensemble
    from forde.training import History


MEASURED, DIGITS = 3, 10
"""Fewer classes are hardly measured numbers, and so many are counted as a rule."""


def refuse_unvalidated(validation: str | None, **options: Any) -> None:
    """Before anything is read: what follows from validation data needs some."""
    for name, value in options.items():
        if validation is None and value is not None:
            raise FordeError(
                f"--{name} {value} is about validation data, and there is none; add --validation 0.2 to hold out a "
                f"fifth of the training data, or leave --{name} out."
            )


def described(name: str, ready: Prepared, test: Images | Table | None, *, guessed: bool) -> str:
    """What will be learned from what, before the time is spent.

    Args:
        guessed: whether nobody said if the target is a class.
    """
    data = ready.data
    classes = data.description.n_classes
    held = "" if ready.validation is None else f"; {len(ready.validation):,} others validate"
    held += "" if test is None else f"; {len(test):,} are held out to test"
    if isinstance(data, Images):
        return f"{name}: {len(data):,} images of {classes} classes{held}"
    kind = f"a class, one of {classes}" if classes else "a quantity, standardised"
    if guessed and like_a_quantity(data.description.classes):
        kind += " (--task regression makes it a quantity)"
    made = "" if data.encoding is None else f" (made of {data.encoding})"
    return (
        f"{name}: {len(data):,} rows of {len(data.feature_names):,} features{made}, standardised; "
        f"the target '{data.target_name}' is {kind}{held}"
    )


def like_a_quantity(classes: Sequence[str]) -> bool:
    """Whether classes are whole numbers that somebody may have measured: many, or not counted from 0 or 1.

    >>> like_a_quantity(["18", "19", "21"]), like_a_quantity(["1", "2", "3"]), like_a_quantity(["cat", "dog"])
    (True, False, False)
    """
    if len(classes) < MEASURED or not all(name.lstrip("-").isdecimal() for name in classes):
        return False
    counted = [[str(n) for n in range(first, first + len(classes))] for first in (0, 1)]
    return len(classes) > DIGITS or list(classes) not in counted


def explained(history: History, ready: Prepared) -> str:
    """The last loss beside that of a constant prediction; a warning where it is far above."""
    data, records = ready.standard, history.records
    classes = data.description.n_classes
    constant = constant_loss(data.labels if isinstance(data, Images) else data.y, classes)
    loss = float(records[-1]["loss"])
    of = "class frequencies" if classes else "mean and variance of the target"
    if far_above(loss, constant):
        typer.echo(
            f"Warning: the loss {loss:.4f} is far above {constant:.4f}, which the {of} alone would give; "
            "lower --lr, or train for more --epochs.",
            err=True,
        )
    unit = "nats per sample" if classes else "nats per row for the standardised target"
    said = f"loss {loss:.4f} after {len(records)} epochs ({unit}; the {of} alone would give {constant:.4f})"
    if history.best_epoch is None:
        return said
    best = records[history.best_epoch]
    found = ", ".join(f"{name.removeprefix('validation_')} {value:.4f}" for name, value in best.items()
                      if name.startswith("validation_"))  # fmt: skip
    stopped = f"; stopped early, as {history.stopped}" if history.stopped else ""
    return f"{said}; best on the validation data after epoch {history.best_epoch + 1}: {found}{stopped}"


def keep_reference(ensemble: Ensemble, ready: Prepared, out: Path) -> None:
    """How uncertain members are about data like that of training, for `forde predict`."""
    from forde.evaluation.runs.reference import make_reference
    from forde.training import TrainedRun

    data, kind = (ready.data, "training") if ready.validation is None else (ready.validation, "validation")
    make_reference(TrainedRun(ensemble, ready.recipe, out), data, kind).save(out)  # type: ignore[arg-type]
