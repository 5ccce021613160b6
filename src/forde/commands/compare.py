"""`forde compare`: evaluated runs beside the first one, paired by sample, with standard errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from forde.commands.options import JsonFile, Runs, Seed
from forde.errors import FordeError
from forde.report.page.parts import BETTER, SHOWN, WORDS

if TYPE_CHECKING:
    from forde.evaluation.robustness.comparison import Comparison, Difference
    from forde.evaluation.runs import RunScores

CLEAR = 2.0
"""Standard errors beyond which a difference is more than noise."""
WHERE = {"clean": "clean", "cell_average": "corrupted"}


def compare(
    runs: Runs,
    resamples: Annotated[int, typer.Option(min=100, help="Of the bootstrap and of the permutation test.")] = 1000,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Is one run better than another? Differences to the first run, sample by sample, on what all were evaluated on.

    All runs saw the same samples, so what is hard for one is hard for the others; pairing removes that. Standard errors
    are of the paired bootstrap, p-values of a permutation test, not corrected for looking at many metrics. What is
    within two standard errors is called noise. With one training for each run, another seed may change more than that.

    Example: forde compare runs/a runs/b
    """
    from forde.commands.reporting import sayer, table_console, write_report
    from forde.evaluation.runs import RunScores, compare_runs

    _refuse_too_few(runs)
    scores = [RunScores.load(run) for run in runs]
    found = {
        str(run): _compared(compare_runs, runs[0], run, n_resamples=resamples, seed=seed) for run in runs[1:]
    }  # fmt: skip
    say, console, first = sayer(json_file), table_console(json_file), scores[0]
    say(f"against {runs[0]}, on {first.data['samples']:,} samples of {first.data['name']} ({first.data['split']})")
    for run, own in zip(runs[1:], scores[1:], strict=True):
        console.print()
        console.print(_table(str(run), first, own, found[str(run)]))
        for line in _cells(found[str(run)]):
            say(line)
    write_report(
        "compare",
        {"first": str(runs[0]), "task": first.task, "data": first.data, "resamples": resamples, "seed": seed,
         "clean": {str(run): own.result.clean for run, own in zip(runs, scores, strict=True)},
         "cell_average": {str(run): own.result.cell_average for run, own in zip(runs, scores, strict=True)},
         "differences": {run: one.to_dict() for run, one in found.items()}},
        json_file,
    )  # fmt: skip


def _refuse_too_few(runs: Sequence[Path]) -> None:
    if len(runs) < 2:
        raise FordeError(f"only {runs[0]} was given, but at least two runs were expected; name another one.")
    resolved = [run.resolve() for run in runs]
    for place, run in enumerate(resolved):
        if run in resolved[:place]:
            raise FordeError(f"the run '{runs[place]}' was given twice; name each run once.")


def _compared(compare_runs: Any, first: Path, second: Path, **options: Any) -> Comparison:
    try:
        comparison: Comparison = compare_runs(first, second, **options)
    except FordeError as error:
        raise FordeError(f"'{first}' and '{second}' cannot be compared: {error}") from None
    return comparison


def _table(name: str, first: RunScores, second: RunScores, found: Comparison) -> Table:
    from forde.evaluation.robustness.results import decimals

    table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("", "first", "this", "difference", "95 % interval", "p", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for where, word in WHERE.items():
        differences: Mapping[str, Difference] = getattr(found, where)
        for metric in SHOWN[first.task]:
            if metric in differences:
                one, other = (getattr(each.result, where)[metric].value for each in (first, second))
                difference = differences[metric]
                places = decimals(metric, difference.error)
                table.add_row(
                    f"{word} {WORDS[metric]}", f"{one:,.{places}f}", f"{other:,.{places}f}",
                    f"{difference.value:+,.{places}f} ± {difference.error:,.{places}f}",
                    f"{difference.low:+,.{places}f} to {difference.high:+,.{places}f}", f"{difference.p_value:.3f}",
                    judged(metric, difference),
                )  # fmt: skip
    return table


def judged(metric: str, difference: Difference) -> str:
    """A word for a difference: better, worse or differs beyond two standard errors, else within noise."""
    if abs(difference.value) <= CLEAR * difference.error:
        return "within noise"
    side = BETTER.get(metric, 0) * difference.value
    return "better" if side > 0 else "worse" if side < 0 else "differs"


def _cells(found: Comparison) -> Iterator[str]:
    """In how many cells of corruption and severity it is clearly better or worse."""
    cells = [cell for levels in found.cells.values() for cell in levels.values()]
    if not cells:
        return
    for metric in (metric for metric in ("accuracy", "nll", "rmse") if metric in cells[0]):
        words = [judged(metric, cell[metric]) for cell in cells]
        yield (
            f"{WORDS[metric]} in {len(cells)} cells of corruption and severity: better in {words.count('better')}, "
            f"worse in {words.count('worse')}, within noise in {words.count('within noise')}"
        )
