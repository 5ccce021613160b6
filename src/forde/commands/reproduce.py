"""`forde reproduce`: the paper's tables and figures, cell by cell."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from forde.errors import FordeError, unknown_name

FAILED, TIME_OVER = 3, 75
"""Exit codes: a cell failed; the time is over and the same command goes on."""


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments (`--list` shows them), or `plan`.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all experiments with the expected time.")] = False,
    budget: Annotated[str, typer.Option(help="full, long, short or smoke.")] = "short",
    out: Annotated[Path, typer.Option(help="Folder for cells, tables and figures.")] = Path("results"),
    methods: Annotated[str | None, typer.Option(help="Only these methods, as in deep-ensemble,forde-pca.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these seeds, as in 0,1,2.")] = None,
    data: Annotated[Path | None, typer.Option(help="Where data sets are; FORDE_DATA if left out.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one if left out.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bf16; the budget's if left out.")] = None,
    engine: Annotated[str | None, typer.Option(help="How steps are run; compiled for images on a GPU.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop in so many minutes; run again to go on.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells and which are done.")] = False,
) -> None:
    """Run the experiments of the paper; cells that are finished are never run again.

    Example: forde reproduce table-cifar10 --budget short --data data --out results/short
    """
    import torch

    from forde.experiments.budgets import adjusted
    from forde.experiments.budgets import budget as budget_of
    from forde.experiments.places import Place
    from forde.experiments.registry import experiment
    from forde.experiments.running import is_done
    from forde.experiments.sweeps import run_in_order, runnable

    started = time.time()
    chosen = adjusted(budget_of(budget), precision, seeds)
    if not names:
        raise FordeError("no experiment was named; name one, or see them all with --list.")
    cells = [cell for name in names for cell in experiment(name).cells(chosen)]
    cells, missing = runnable(cells)
    if methods is not None:
        wanted = methods.split(",")
        for name in wanted:
            if name not in (known := {cell.method for cell in cells} | set(missing)):
                raise unknown_name("method of these experiments", name, known)
        cells = [cell for cell in cells if cell.method in wanted]
        missing = [name for name in missing if name in wanted]
    if missing:
        typer.echo(f"left out, because no such method is registered: {', '.join(missing)}")
    place = Place(
        out, device or ("cuda" if torch.cuda.is_available() else "cpu"), data=data, engine=engine, budget=budget,
        command=shlex.join(["forde", *sys.argv[1:]]), deadline=None if minutes is None else started + 60 * minutes,
    )  # fmt: skip
    if dry_run:
        for cell in cells:
            typer.echo(f"{'done' if is_done(cell, place) else 'to do'}  {cell.name}")
        return
    outcomes = run_in_order(cells, place, lambda one: typer.echo(f"{one.status:11}  {one.cell.name}  {one.line}"))
    left = [one for one in outcomes if one.status in ("left", "interrupted")]
    failed = [one for one in outcomes if one.status == "failed"]
    if left:
        typer.echo(f"{len(left)} of {len(outcomes)} cells are left; run the same command again to go on.")
    if failed:
        typer.echo(f"{len(failed)} of {len(outcomes)} cells failed; the reasons stand above.", err=True)
    if failed or left:
        raise typer.Exit(FAILED if failed else TIME_OVER)
