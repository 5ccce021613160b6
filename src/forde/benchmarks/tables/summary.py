"""What follows from cells: means, ranks and differences from the first peer, as rows and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from forde.benchmarks.tables.cells import Cell, read_splits
from forde.benchmarks.tables.data_sets import Task, data_set, data_sets, split
from forde.durable import explaining_writes, make_folder, write_whole

Scores = Mapping[tuple[str, str], Mapping[str, float]]
"""Means over splits by data set and peer."""
METRICS: Mapping[Task, tuple[str, ...]] = {
    "classification": ("accuracy", "nll", "brier", "ece", "ratio"),
    "regression": ("rmse", "nll", "crps", "coverage", "width", "ratio"),
}
RANKED: Mapping[Task, tuple[str, ...]] = {
    "classification": ("accuracy", "nll", "brier"),
    "regression": ("rmse", "nll", "crps"),
}
"""Metrics by which peers are ranked and compared; less is better but for the accuracy."""
TITLES = {
    "accuracy": "accuracy ↑", "nll": "NLL ↓", "brier": "Brier ↓", "ece": "ECE ↓", "rmse": "RMSE ↓", "crps": "CRPS ↓",
    "coverage": "coverage (.95)", "width": "width", "ratio": "fit ÷ one MLP's",
}  # fmt: skip


def scores_of(cells: Sequence[Cell], splits: int, out: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Means over the first splits of cells that have all of them."""
    found = {}
    for cell in cells:
        done = read_splits(cell, out)
        numbers = [done[number] for number in range(splits) if number in done]
        if len(numbers) == splits:
            names = numbers[0]
            means = {name: statistics.fmean(each[name] for each in numbers) for name in names}
            found[cell.data.name, cell.peer.name] = means
    return found


def of_task(scores: Scores, task: Task) -> dict[tuple[str, str], Mapping[str, float]]:
    """Those of the task's data sets."""
    known = data_sets()
    return {key: each for key, each in scores.items() if known[key[0]].task == task}


def sets_and_peers(scores: Scores) -> tuple[list[str], list[str]]:
    """Both in the order in which they come."""
    return list(dict.fromkeys(data for data, _ in scores)), list(dict.fromkeys(name for _, name in scores))


def common_sets(scores: Scores) -> list[str]:
    """The data sets that every peer has."""
    sets, names = sets_and_peers(scores)
    return [data for data in sets if all((data, name) in scores for name in names)]


def mean(scores: Scores, name: str, metric: str) -> float | None:
    """Of one peer, over the data sets that every peer has."""
    values = [scores[data, name][metric] for data in common_sets(scores)]
    return statistics.fmean(values) if values else None


def mean_rank(scores: Scores, name: str, metric: str) -> float | None:
    """Of one peer among all, over the data sets that every peer has; 1 is the best, equals share a rank.

    >>> values = {"ax": 1.0, "ay": 2.0, "bx": 1.0, "by": 1.0}
    >>> scores = {tuple(key): {"nll": value} for key, value in values.items()}
    >>> mean_rank(scores, "x", "nll"), mean_rank(scores, "y", "nll")
    (1.25, 1.75)
    """
    _, names = sets_and_peers(scores)
    ranks = []
    for data in common_sets(scores):
        values = {other: scores[data, other][metric] * (-1 if metric == "accuracy" else 1) for other in names}
        better = sum(value < values[name] for value in values.values())
        equal = sum(value == values[name] for value in values.values())
        ranks.append(better + (equal + 1) / 2)
    return statistics.fmean(ranks) if ranks else None


def difference(scores: Scores, first: str, other: str, metric: str) -> tuple[float, float, int, int] | None:
    """Mean over data sets that both have of first − other, its standard error, sets where first is better, and sets.

    >>> values = {"ax": 1.0, "ay": 2.0, "bx": 1.0, "by": 4.0}
    >>> scores = {tuple(key): {"nll": value} for key, value in values.items()}
    >>> difference(scores, "x", "y", "nll")
    (-2.0, 1.0, 2, 2)
    """
    sets, _ = sets_and_peers(scores)
    both = [data for data in sets if (data, first) in scores and (data, other) in scores]
    found = [scores[data, first][metric] - scores[data, other][metric] for data in both]
    if len(found) < 2:
        return None
    better = sum(value > 0 if metric == "accuracy" else value < 0 for value in found)
    return statistics.fmean(found), statistics.stdev(found) / len(found) ** 0.5, better, len(found)


def rows_of(scores: Scores) -> list[dict[str, object]]:
    """One row for each cell, for JSON."""
    return [{"set": data, "peer": name, **each} for (data, name), each in scores.items()]


def markdown(scores: Scores, task: Task, splits: int) -> str:
    """The tables of one task: means, differences from the first peer, and the NLL of each data set."""
    sets, names = sets_and_peers(scores)
    shared = common_sets(scores)
    parts = [
        f"{task.capitalize()}: {len(shared)} data sets that every peer has (of {len(sets)}), {splits} splits. "
        "Means over data sets, and mean ranks.",
        _means(scores, task, names),
    ]
    if len(names) > 1:
        parts += [
            f"{names[0]} − peer, over the data sets that both have: mean ± standard error "
            f"(data sets where {names[0]} is better, of all).",
            _differences(scores, task, names),
        ]
    parts += ["NLL of each data set; the best in bold.", _each(scores, sets, names, "nll")]
    if task == "regression":
        parts += ["Coverage of the 95 % intervals.", _coverage(scores, sets, names)]
    parts += ["Training rows, and time of a fit ÷ that of one perceptron.", _ratios(scores, sets, names)]
    return "\n\n".join(parts) + "\n"


def _means(scores: Scores, task: Task, names: Sequence[str]) -> str:
    metrics, ranked = METRICS[task], RANKED[task]
    heads = [*(TITLES[metric] for metric in metrics), *(f"rank, {TITLES[metric][:-2]}" for metric in ranked)]
    lines = []
    for name in names:
        cells = [_number(mean(scores, name, metric), ".1f" if metric == "ratio" else ".3f") for metric in metrics]
        lines.append([name, *cells, *(_number(mean_rank(scores, name, metric), ".1f") for metric in ranked)])
    return _table(["peer", *heads], lines)


def _differences(scores: Scores, task: Task, names: Sequence[str]) -> str:
    lines = []
    for other in names[1:]:
        cells = []
        for metric in RANKED[task]:
            found = difference(scores, names[0], other, metric)
            cells.append("–" if found is None else f"{found[0]:+.3f} ± {found[1]:.3f} ({found[2]} of {found[3]})")
        lines.append([other, *cells])
    return _table(["peer", *(TITLES[metric] for metric in RANKED[task])], lines)


def _each(scores: Scores, sets: Sequence[str], names: Sequence[str], metric: str) -> str:
    lines = []
    for data in sets:
        best = min(_values(scores, [data], names, metric))
        texts = _texts(scores, data, names, metric, ".3f")
        lines.append([data, *(f"**{text}**" if text == f"{best:.3f}" else text for text in texts)])
    return _table(["data set", *names], lines)


def _coverage(scores: Scores, sets: Sequence[str], names: Sequence[str]) -> str:
    """With the mean and the lowest of the data sets that a peer has."""
    lines = [[data, *_texts(scores, data, names, "coverage", ".3f")] for data in sets]
    for title, of_all in (("mean", statistics.fmean), ("lowest", min)):
        lines.append([f"*{title}*", *(f"{of_all(_values(scores, sets, [name], 'coverage')):.3f}" for name in names)])
    return _table(["data set", *names], lines)


def _ratios(scores: Scores, sets: Sequence[str], names: Sequence[str]) -> str:
    lines = []
    for data in sets:
        rows = len(split(data_set(data), 0).y_train)
        lines.append([data, str(rows), *_texts(scores, data, names, "ratio", ".1f")])
    return _table(["data set", "rows", *names], lines)


def _values(scores: Scores, sets: Sequence[str], names: Sequence[str], metric: str) -> list[float]:
    return [scores[data, name][metric] for data in sets for name in names if (data, name) in scores]


def _texts(scores: Scores, data: str, names: Sequence[str], metric: str, form: str) -> list[str]:
    """One of each peer for a data set."""
    return [_number(scores[data, name][metric] if (data, name) in scores else None, form) for name in names]


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|", *rows])


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


def write_markdown(scores: Scores, task: Task, splits: int, out: Path) -> Path:
    """The task's tables beside the cells, as a page of the documentation takes them in."""
    path = out / f"{task}.md"
    with explaining_writes(out, "make it writable"):
        make_folder(out)
        write_whole(path, markdown(scores, task, splits).encode())
    return path
