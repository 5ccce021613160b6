"""All that is made of an experiment's results: tables, figures, the summary of claims."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from forde.durable import explaining_writes, make_folder, write_whole
from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, unique
from forde.experiments.claims import judged_all
from forde.experiments.groups import Group, grouped
from forde.experiments.outputs import CostTable, Figure, ScoreTable
from forde.experiments.paper import DRAWS, EPOCHS, MEMBERS
from forde.experiments.places import CELLS
from forde.experiments.registry import Experiment
from forde.experiments.results import Result, results_in
from forde.report import claims, cost_tables, score_tables
from forde.report.figures import draw

ADVICE = "make it writable or choose another --out"


def report_experiment(experiment: Experiment, budget: Budget, out: Path) -> Iterator[str]:
    """Write everything into `out/BUDGET/EXPERIMENT`; yields lines for people."""
    if not experiment.outputs:
        return
    cells = unique(experiment.cells(budget))
    results, problems = results_in(out / CELLS, cells)
    yield from problems
    if not results:
        yield f"{experiment.name}: no cell is done, so there is nothing to show"
        return
    folder = out / budget.name / experiment.name
    sets = list(dict.fromkeys(cell.data for cell in cells))
    groups = {name: grouped([one for one in results if one.cell.data == name], experiment.label) for name in sets}
    groups = {name: found for name, found in groups.items() if found}
    with explaining_writes(folder, ADVICE):
        make_folder(folder)
        texts: list[str] = []
        for name, found in groups.items():
            ending = f"-{name.partition('@')[0]}" if len(sets) > 1 else ""
            _write_tables(experiment, budget, folder, found, ending)
            texts.append(claims.summary(f"{name}, {budget.name}", judged_all(experiment.claims, found, name)))
        _write(folder / "summary.md", f"### {experiment.name}\n\n{experiment.line}\n\n{_about(results, cells)}\n\n"
               + "\n".join(filter(None, texts)))  # fmt: skip
        _write(folder / "corruptions.csv", per_corruption(results, experiment))
        for output in experiment.outputs:
            if isinstance(output, Figure):
                yield from draw(output.drawing, groups, folder)
    done = {result.cell.name for result in results}
    there = sum(cell.name in done for cell in cells)
    yield f"{experiment.name}: {there} of {len(cells)} cells are done; tables and figures in '{folder}'"


def _write_tables(
    experiment: Experiment, budget: Budget, folder: Path, groups: Mapping[str, Group], ending: str
) -> None:  # fmt: skip
    for output in experiment.outputs:
        if isinstance(output, ScoreTable):
            rows = score_tables.rows_of(groups, None if budget.smoke else output.published)
            caption = caption_of(experiment, list(groups.values()))
            for name, beside_paper in [("table", True), *([("ours", False)] if output.published else [])]:
                table = score_tables.markdown(rows, groups, beside_paper=beside_paper)
                text = f"{table}\n{caption}\n\n{score_tables.legend(beside_paper=beside_paper)}\n"
                _write(folder / f"{name}{ending}.md", text)
            _write(folder / f"table{ending}.csv", score_tables.comma_separated(rows, groups))
            _write(folder / f"table{ending}.tex", score_tables.latex(rows, caption))
        if isinstance(output, CostTable):
            _write(folder / f"cost{ending}.md", cost_tables.markdown(groups))
            _write(folder / f"cost{ending}.csv", cost_tables.comma_separated(groups))


def caption_of(experiment: Experiment, groups: Sequence[Group]) -> str:
    """What was trained on what, and how that differs from the paper."""
    cells = [group.cell for group in groups]
    first = cells[0]
    models = ", ".join(dict.fromkeys(cell.model for cell in cells))
    members = _span([cell.members for cell in cells if cell.method not in DRAWS] or [cell.members for cell in cells])
    epochs = _span([cell.epochs for cell in cells])
    text = f"{experiment.name}: {first.data}, {models}, {members} members, {epochs} epochs, {first.precision}."
    drawn = sorted({f"{cell.method} {cell.members}" for cell in cells if cell.method in DRAWS})
    text += f" Draws of one network: {', '.join(drawn)}." if drawn else ""
    paper = EPOCHS.get(first.data)
    if paper is not None and (epochs != str(paper) or members != str(MEMBERS)):
        text += f" The paper has {MEMBERS} members and {paper} epochs, so absolute numbers differ."
    return text


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _about(results: Sequence[Result], cells: Sequence[Cell]) -> str:
    """Where and when the cells were run, and what to beware of."""
    machines = {_machine(result) for result in results}
    versions = {str(result.content["run"]["machine"].get("torch")) for result in results}
    done = {result.cell.name for result in results}
    hours = sum(sum(filter(None, result.content["seconds"].values())) for result in results) / 3600
    lines = [
        f"{sum(cell.name in done for cell in cells)} of {len(cells)} cells, {hours:.1f} hours, on "
        f"{', '.join(sorted(machines))}, torch {', '.join(sorted(versions))}."
    ]
    sources = {_without_folder(str(one.content["data"]["source"])) for one in results if "data" in one.content}
    if sources:
        lines.append(f"Data: {'; '.join(sorted(sources))}.")
    for name in dict.fromkeys(cell.data for cell in cells):
        prints = {one.content["data"]["print"] for one in results if one.cell.data == name and "data" in one.content}
        if len(prints) > 1:
            lines.append(f"**Beware**: cells of {name} were trained on {len(prints)} different copies of the data.")
    return "\n".join(lines)


def _without_folder(source: str) -> str:
    """Where data were lies on somebody else's disk: the last folder's name says enough."""
    return re.sub(r"'[^']*/([^/']+)'", r"'\1'", source)


def _machine(result: Result) -> str:
    run = result.content["run"]
    return str(
        run["machine"].get("gpu") if str(run["device"]).startswith("cuda") else f"{run['machine'].get('processor')} CPU"
    )


def per_corruption(results: Sequence[Result], experiment: Experiment) -> str:
    """Scores of every seed under every corruption at every severity, as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    scores = ("accuracy", "nll", "ece", "epistemic", "disagreement")
    writer.writerow(["data", "setting", "seed", "corruption", "severity", *scores])
    for result in results:
        for corruption, levels in result.content.get("corruptions", {}).items():
            for level, values in levels.items():
                where = [result.cell.data, experiment.label(result.cell), result.cell.seed, corruption, level]
                writer.writerow([*where, *(values.get(name) for name in scores)])
    return out.getvalue()


def _write(path: Path, text: str) -> None:
    write_whole(path, text.encode())
