"""`forde predict`: what a run says about new inputs, and where not to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from forde.commands import completion
from forde.commands.options import STDOUT, DataDir, Device, JsonFile, Model, Run
from forde.errors import FordeError

if TYPE_CHECKING:
    from forde.evaluation.runs.reference import Reference


def predict(
    run: Run,
    data: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            help="A CSV or Parquet file with the columns of training, a folder of images, an image, a .npz file, or a "
            "data set by name. Targets are not looked at.",
            autocompletion=completion.data_sets,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The .csv or .parquet file to write; - for CSV on stdout.")] = Path(
        "predictions.csv"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Replace the file if it is there.")] = False,
    doubt: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Do not trust what is more uncertain than all but this share of samples like those of training.",
        ),
    ] = 0.05,
    interval: Annotated[float, typer.Option(help="Probability of the interval of a quantity.")] = 0.9,
    model: Model = None,
    data_dir: DataDir = None,
    device: Device = None,
    json_file: JsonFile = None,
) -> None:
    """Predict for new inputs: a row for each, with uncertainties and whether not to trust it.

    Classes: label, probability, entropies in nats, and the probability of each class. Quantities: mean, an interval and
    standard deviations in the unit of the target.

    do_not_trust is yes where at most 5 in 100 (--doubt 0.05) samples like those of training are as uncertain. These are
    the validation data of forde train, else the clean test data of forde evaluate, else the training data.

    Example: forde predict runs/a new.csv --out predictions.csv
    """
    from forde.commands.opening import opened
    from forde.commands.prediction_file import as_csv, columns_of, write_columns
    from forde.commands.reporting import sayer, write_report
    from forde.data.unlabelled import read_unlabelled
    from forde.evaluation.runs.reference import reference_of

    _check_out(out, json_file, replace=replace)
    if not 0 < interval < 1:
        raise FordeError(f"--interval is {interval:g}, but a probability between 0 and 1 was expected, as in 0.9.")
    trained = opened(run, model=model, device=device)
    new = read_unlabelled(trained.inputs, data, data_dir)
    reference = reference_of(trained)
    columns = columns_of(trained.predict(new.x), trained.inputs, reference, doubt=doubt, level=interval)
    size = len(next(iter(columns.values())))
    names: dict[str, Any] = {"file": new.names} if new.names else {"row": np.arange(1, size + 1)}
    columns = {**names, **columns}
    if out == STDOUT:
        typer.echo(as_csv(columns), nl=False)
        return
    write_columns(columns, out)
    say = sayer(json_file)
    doubted = int((columns["do_not_trust"] == "yes").sum()) if reference is not None else None
    say(f"wrote {size:,} prediction{'' if size == 1 else 's'} to {out}")
    say(_about(reference, doubted, size, doubt))
    write_report(
        "predict",
        {"run": str(run), "data": data, "out": str(out), "samples": size, "not_trusted": doubted, "doubt": doubt,
         "reference": None if reference is None else {"kind": reference.kind, "samples": len(reference.uncertainty)}},
        json_file,
    )  # fmt: skip


def _check_out(out: Path, json_file: Path | None, *, replace: bool) -> None:
    """Before anything is computed."""
    from forde.commands.prediction_file import SUFFIXES

    if out == STDOUT:
        if json_file == STDOUT:
            raise FordeError("--out - and --json - would both write to stdout; name a file for one of them.")
        return
    if out.suffix.lower() not in SUFFIXES:
        raise FordeError(
            f"--out is '{out}', but a file ending in {' or '.join(SUFFIXES)} was expected, or - for stdout."
        )
    if out.exists() and (out.is_dir() or not replace):
        raise FordeError(f"'{out}' is there already; name another file as --out, or add --replace.")


def _about(reference: Reference | None, doubted: int | None, size: int, doubt: float) -> str:
    if reference is None or doubted is None:
        return (
            "there is no do_not_trust, as the run has nothing to compare with: run forde evaluate on its test data, or "
            "train with --validation 0.2."
        )
    said = (
        f"{doubted:,} of {size:,} ({doubted / size:.1%}) are not to be trusted: "
        f"more uncertain than all but {doubt:.1%} of {reference}"
    )
    if doubt * (len(reference.uncertainty) + 1) < 1:
        return f"{said}; these are too few for --doubt {doubt:g}, so nothing could be marked."
    return said
