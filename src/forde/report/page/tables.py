"""The report's tables: metrics of each run, paired differences, corruption by corruption, cost and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forde.evaluation.robustness.comparison import Comparison, Difference
from forde.report.page.parts import (
    SHOWN,
    WORDS,
    Cell,
    Table,
    best_of,
    error_of,
    is_share,
    metric_cell,
    number,
    number_cell,
    signed,
    text_cell,
)
from forde.report.page.runs import EvaluatedRun
from forde.report.page.verdict import CLEAR


def metric_table(runs: Sequence[EvaluatedRun]) -> Table:
    """Each run on clean and on corrupted data; metrics with standard errors."""
    metrics = SHOWN[runs[0].scores.task]
    rows = []
    for where, title in (("clean", "clean"), ("cell_average", runs[0].altered)):
        found = {run.name: getattr(run.scores.result, where) for run in runs}
        shown = {name: scores for name, scores in found.items() if scores}
        best = {m: best_of(m, [scores[m].value for scores in shown.values()]) for m in metrics}
        for name, scores in shown.items():
            cells = [metric_cell(m, *scores[m], best=scores[m].value == best[m]) for m in metrics]
            rows.append([text_cell(name), text_cell(title), *cells])
    altered, kinds = runs[0].altered.capitalize(), "shifts" if runs[0].of_rows else "corruptions"
    caption = (
        f"Metrics with standard errors of the bootstrap over samples. {altered}: mean over all {kinds} and severities."
    )
    if len(runs) > 1:
        caption += " The best is bold; whether it is better by more than noise, the differences say."
    return Table("metrics", caption, ["Run", "Data", *(WORDS[m] for m in metrics)], rows)


def difference_table(runs: Sequence[EvaluatedRun], comparisons: Mapping[str, Comparison]) -> Table | None:
    """Each run − the first one, paired by sample."""
    metrics = SHOWN[runs[0].scores.task]
    rows = []
    for run in runs[1:]:
        if (found := comparisons.get(run.name)) is None:
            continue
        for where, title in (("clean", "clean"), ("cell_average", runs[0].altered)):
            if differences := getattr(found, where):
                cells = [_difference_cell(m, differences[m]) for m in metrics]
                rows.append([text_cell(run.name), text_cell(title), *cells])
    if not rows:
        return None
    caption = (
        f"Difference to {runs[0].name}, paired by sample, with its bootstrap standard error. Bold: more than two "
        "standard errors. Shares in percent points. Many differences are looked at, so a single bold one may be chance."
    )
    return Table("differences", caption, ["Run", "Data", *(WORDS[m] for m in metrics)], rows)


def _difference_cell(metric: str, found: Difference) -> Cell:
    percent = is_share(metric)
    factor = 100 if percent else 1
    clear = found.value != 0 and abs(found.value) > CLEAR * found.error
    text = f"{'+' if found.value >= 0 else '−'}{abs(100 * found.value):.2f}" if percent else signed(found.value)
    error = f"± {100 * found.error:.2f}" if percent else error_of(metric, found.error)
    return Cell(text, factor * found.value, "best" if clear else "number", error)


def corruption_table(runs: Sequence[EvaluatedRun], metric: str) -> Table:
    """One metric, mean over severities: a row for each corruption, a column for each run."""
    names = list(dict.fromkeys(name for run in runs for name in run.scores.result.types))
    rows = []
    for name in names:
        values = [run.scores.result.types[name][metric] if name in run.scores.result.types else None for run in runs]
        best = best_of(metric, [value.value for value in values if value is not None])
        cells = [
            number_cell(None) if value is None else metric_cell(metric, *value, best=value.value == best)
            for value in values
        ]
        rows.append([text_cell(name), *cells])
    kind = "shift" if runs[0].of_rows else "corruption"
    caption = f"{WORDS[metric]} under each {kind}, mean over severities, with standard errors."
    return Table(f"corruptions-{metric}", caption, [kind.capitalize(), *(run.name for run in runs)], rows, names)


def foreign_table(runs: Sequence[EvaluatedRun]) -> Table | None:
    """How well uncertainty tells foreign inputs from clean ones."""
    rows = []
    for run in runs:
        if (foreign := run.scores.foreign) is None:
            continue
        for kind, found in foreign["auroc"].items():
            rows.append(
                [
                    text_cell(run.name), text_cell(foreign["name"]), text_cell(WORDS.get(kind, kind.capitalize())),
                    Cell(number(found["value"]), found["value"], "number", error_of("auroc", found["error"])),
                ]
            )  # fmt: skip
    if not rows:
        return None
    remark = next((run.scores.foreign["remark"] for run in runs if run.scores.foreign), "")
    caption = "AUROC of telling foreign from clean inputs by an uncertainty: 1 always, 0.5 not at all."
    return Table(
        "foreign", f"{caption}{f' Foreign images were {remark}.' if remark else ''}",
        ["Run", "Foreign inputs", "Uncertainty", "AUROC"], rows,
    )  # fmt: skip


def cost_table(runs: Sequence[EvaluatedRun]) -> Table:
    """What each run took to train, to keep and to predict with."""
    rows = []
    for run in runs:
        cost = run.scores.cost
        seconds = [record["seconds"] for record in run.records if "seconds" in record]
        trained_on = str(run.sessions[-1].get("device", "–")) if run.sessions else "–"
        rows.append(
            [
                text_cell(run.name),
                number_cell(cost["members"], f"{cost['members']}"),
                number_cell(cost["parameters"], f"{cost['parameters']:,}"),
                number_cell(cost["bytes"], _size(cost["bytes"])),
                number_cell(sum(seconds) if seconds else None, _duration(sum(seconds)) if seconds else "–"),
                number_cell(sum(seconds) / len(seconds) if seconds else None, None),
                text_cell(trained_on),
                number_cell(cost["ms_per_sample"]),
                text_cell(str(cost["device"])),
            ]
        )  # fmt: skip
    headings = ["Run", "Members", "Parameters", "On disk", "Training", "s per epoch", "Trained on", "ms per prediction",
                "Predicted on"]  # fmt: skip
    caption = (
        "Training is the time in epochs, without loading and compiling. Prediction is the time for one sample in a "
        "batch of up to 512, by all members, on the machine that evaluated."
    )
    return Table("cost", caption, headings, rows)


def _size(n_bytes: int | None) -> str:
    if n_bytes is None:
        return "–"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes >= 1e5 else f"{n_bytes / 1e3:.0f} kB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{number(seconds, 2)} s"
