"""`forde reproduce`: the paper's tables and figures, cell by cell."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forde.commands.options import LATER, JsonFile
from forde.commands.reporting import sayer, write_report
from forde.errors import FordeError, unknown_name

if TYPE_CHECKING:
    from forde.experiments.cells import Cell
    from forde.experiments.places import Place
    from forde.experiments.registry import Experiment
    from forde.experiments.running import Outcome

CELL_FAILED = 3
"""Exit code where the command itself went to its end."""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments (--list shows them), `all`, or `plan`: the most telling first."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all experiments and the time each should take.")] = False,
    budget: Annotated[str, typer.Option(help="full (the paper's), long, short or smoke.")] = "short",
    out: Annotated[Path, typer.Option(help="Folder for cells, tables and figures.")] = Path("results"),
    methods: Annotated[str | None, typer.Option(help="Only these methods, as in deep-ensemble,forde-pca.")] = None,
    seeds: Annotated[str | None, typer.Option(help="These seeds, as in 0,1,2; if left out, the budget's.")] = None,
    cells_: Annotated[
        str | None,
        typer.Option("--cells", help="Only cells whose name fits, as in '*-strength5-*' (--dry-run shows names)."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where data sets are; FORDE_DATA if left out.")] = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder of pretrained features, named after the backbone.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one if left out.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bf16; if left out, the budget's.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="How steps are run; if left out, compiled for images on a GPU.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at the same time.")] = 1,
    slurm: Annotated[str | None, typer.Option(help="Submit each cell as a job, as in partition=gpu,gpus=1.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop in so many minutes; the same command then goes on.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells and which are done.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Only make tables and figures from what is done.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Fill in the tables and figures that this Markdown page asks for.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Run the paper's experiments; what is finished is never run again.

    Example: forde reproduce table-cifar10 --budget short --data data --out results

    Exit code 3: a cell failed; 75: the time is over, run the same command again.
    """
    from forde.experiments.budgets import adjusted
    from forde.experiments.budgets import budget as budget_of
    from forde.experiments.sweeps import runnable

    chosen = adjusted(budget_of(budget), precision, seeds, None if features is None else features.resolve().name)
    say = sayer(json_file)
    if list_:
        write_report("reproduce", {"experiments": _list(say)}, json_file)
        return
    wanted = _experiments(names, everything=report or page is not None)
    place = _place(
        out, data=data, features=features, device=device, engine=engine, budget=budget, minutes=minutes, slurm=slurm
    )
    cells = _only([cell for each in wanted for cell in each.cells(chosen)], methods, cells_)
    outcomes: list[Outcome] = []
    if not report and page is None:
        cells, reasons = runnable(cells, place)
        for reason in reasons:
            typer.echo(f"left out: {reason}", err=True)
        if not cells:
            raise FordeError("no cell is left to run, for the reasons above; see --list for the experiments.")
        if dry_run:
            _show(cells, place, say)
            write_report("reproduce", {"cells": _states(cells, place)}, json_file)
            return
        outcomes = _run(cells, place, jobs, slurm, minutes, say)
    _report(wanted, chosen, out, page, say)
    done = [{"name": each.cell.name, "status": each.status, "line": each.line, "seconds": each.seconds}
            for each in outcomes]  # fmt: skip
    write_report("reproduce", {"budget": budget, "out": out, "cells": done}, json_file)
    _conclude(outcomes, say)


def _list(say: Callable[[str], None]) -> dict[str, Any]:
    """Returns what each experiment is, and the seconds that it should take at each budget."""
    from forde.experiments.budgets import BUDGETS
    from forde.experiments.cells import unique
    from forde.experiments.estimates import seconds_of
    from forde.experiments.registry import experiments
    from forde.progress import duration

    known = experiments()
    width = max(map(len, known)) + 2
    say(f"{'experiment':{width}}{''.join(f'{name:>9}' for name in BUDGETS)}")
    found = {}
    for each in known.values():
        times = {name: sum(map(seconds_of, unique(each.cells(chosen)))) for name, chosen in BUDGETS.items()}
        say(f"{each.name:{width}}{''.join(f'{duration(time):>9}' for time in times.values())}  {each.line}")
        found[each.name] = {"line": each.line, "seconds": times}
    say("\nTimes on one NVIDIA H200 (smoke: on a CPU). Experiments share cells, and each cell is run once.")
    for chosen in BUDGETS.values():
        say(f"--budget {chosen.name}: {chosen.line}")
    return found


def _experiments(names: list[str] | None, *, everything: bool) -> list[Experiment]:
    from forde.experiments.registry import experiment, experiments

    if not names and not everything:
        raise FordeError("no experiment was named; name one or several, or see them with --list.")
    if not names or "all" in names:
        return [each for name, each in experiments().items() if name != "plan"]
    return [experiment(name) for name in dict.fromkeys(names)]


def _place(
    out: Path, *, data: Path | None, features: Path | None, device: str | None, engine: str | None, budget: str,
    minutes: float | None, slurm: str | None,
) -> Place:  # fmt: skip
    import torch

    from forde.experiments.places import Place

    here = "cuda" if torch.cuda.is_available() or (slurm is not None and "gpus=" in slurm) else "cpu"
    return Place(
        out, device or here, data=data, features=features, engine=engine, budget=budget,
        command=shlex.join(["forde", *sys.argv[1:]]),
        deadline=None if minutes is None else time.time() + 60 * minutes,
    )  # fmt: skip


def _only(cells: Sequence[Cell], methods: str | None, pattern: str | None) -> list[Cell]:
    wanted, known = [] if methods is None else methods.split(","), {cell.method for cell in cells}
    for name in wanted:
        if name not in known:
            raise unknown_name("method of these experiments", name, known)
    found = [cell for cell in cells if not wanted or cell.method in wanted]
    fitting = [cell for cell in found if pattern is None or fnmatchcase(cell.name, pattern)]
    if found and not fitting:
        raise FordeError(
            f"no cell's name fits '{pattern}'; --dry-run shows the names, and * stands for any characters."
        )
    return fitting


def _states(cells: Sequence[Cell], place: Place) -> list[dict[str, str]]:
    from forde.experiments.results import path_of

    return [{"name": cell.name, "status": "done" if path_of(cell, place.cells).exists() else "to do"} for cell in cells]


def _show(cells: Sequence[Cell], place: Place, say: Callable[[str], None]) -> None:
    """Each cell with its expected seconds, and those of all that are to do up to it."""
    from forde.experiments.estimates import timetable
    from forde.progress import duration

    states = _states(cells, place)
    todo = [cell for cell, state in zip(cells, states, strict=True) if state["status"] == "to do"]
    seconds, total = dict(timetable(todo)), 0.0
    for cell, state in zip(cells, states, strict=True):
        total += seconds.get(cell, 0.0)
        times = f"{seconds[cell]:6.0f} s {total:7.0f} s" if cell in seconds else " " * 18
        say(f"{state['status']:7}{times}  {cell.name}")
    say(f"{len(todo)} of {len(cells)} cells to do, about {duration(total)} on one H200")


def _run(
    cells: Sequence[Cell], place: Place, jobs: int, slurm: str | None, minutes: float | None,
    say: Callable[[str], None],
) -> list[Outcome]:  # fmt: skip
    from forde.experiments.slurm import parse, run_on_cluster
    from forde.experiments.sweeps import run_in_order, run_in_processes

    count = iter(range(1, len(cells) + 1))

    def tell(outcome: Outcome) -> None:
        seconds = f"{outcome.seconds:6.1f} s" if outcome.seconds else " " * 8
        say(f"{next(count):3}/{len(cells)} {outcome.status:12}{seconds}  {outcome.cell.name}  {outcome.line}")

    if slurm is not None:
        return run_on_cluster(cells, place, parse(slurm), minutes, tell)
    return run_in_order(cells, place, tell) if jobs == 1 else run_in_processes(cells, place, jobs, tell)


def _report(
    wanted: Sequence[Experiment], chosen: object, out: Path, page: Path | None, say: Callable[[str], None]
) -> None:
    from forde.experiments.budgets import Budget
    from forde.report.experiments import report_experiment
    from forde.report.pages import fill_page

    assert isinstance(chosen, Budget)
    for each in wanted:
        for line in report_experiment(each, chosen, out):
            say(line)
    if page is not None:
        say(fill_page(page, out))


def _conclude(outcomes: Sequence[Outcome], say: Callable[[str], None]) -> None:
    counts = Counter(each.status for each in outcomes)
    left = counts["left"] + counts["interrupted"] + counts["busy"]
    if left:
        say(f"{left} of {len(outcomes)} cells are left; run the same command again to go on.")
    if counts["failed"]:
        typer.echo(f"{counts['failed']} of {len(outcomes)} cells failed; the reasons stand above.", err=True)
    if counts["failed"] or left:
        raise typer.Exit(CELL_FAILED if counts["failed"] else LATER)
