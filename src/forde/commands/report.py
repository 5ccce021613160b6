"""`forde report`: one HTML file that shows evaluated runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forde.commands.options import DataDir, Device, Model, Runs
from forde.errors import FordeError


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write; it is replaced if it is there.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="What stands above it.")] = "Ensemble report",
    model: Model = None,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Write one HTML file about runs: a verdict, metrics, corruption, calibration, uncertainty, training and cost.

    It needs no network and nothing beside it, so it can be sent by mail and printed. The first run is the one that
    others are compared with. A run that was not evaluated yet is evaluated on its clean test data; forde evaluate adds
    corruptions and foreign inputs.

    Example: forde report runs/a runs/b --out report.html
    """
    from forde.commands.opening import opened
    from forde.evaluation.runs import RunScores, evaluate_run
    from forde.evaluation.runs.scores_file import FOLDER, SCORES
    from forde.report.page import write_report_page

    if out.is_dir():
        raise FordeError(f"--out {out} is a folder; name a file, as in --out {out / 'report.html'}.")
    for run in runs:
        if (run / FOLDER / SCORES).is_file():
            RunScores.load(run)  # a damaged one is said before any other is evaluated
    for run in runs:
        if not (run / FOLDER / SCORES).is_file():
            trained = opened(run, model=model, device=device)
            typer.echo(f"{run} has not been evaluated; it is now, on clean test data", err=True)
            evaluate_run(trained, trained.test_data(data_dir=data_dir), run)
    for remark in write_report_page(runs, out, title=title):
        typer.echo(f"Note: {remark}", err=True)
    typer.echo(f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB")
