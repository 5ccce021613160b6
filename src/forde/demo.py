"""`forde demo`: the main job on data that ships with scikit-learn, in a minute or two on a laptop."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from forde.experiments import digits as experiment
from forde.experiments import toys
from forde.progress import Pace, duration
from forde.report.reliability import draw_reliability
from forde.report.toys import draw_figure_2, draw_figure_3

METHODS = ("deep-ensemble", "forde-identity", "forde-pca")
WORKERS = 2


def run_demo(folder: Path, *, seeds: int, members: int, console: Console) -> dict[str, Any]:
    """Compare methods on the digits, print the table, draw the figures.

    Returns `results`, the scores of each method and seed on clean and on corrupted images, and `files`, those written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    console.print(
        f"Training {len(METHODS)} methods × {seeds} seeds, {members} members each, on 898 images of handwritten "
        "digits; testing on 899 others, clean and with 19 corruptions × 3 severities."
    )
    # These networks are so small that threads only wait for each other; two single-threaded processes do not.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, torch.set_num_threads, (1,)) as pool:
        classification = pool.submit(toys.run_figure_3)
        regression = pool.submit(toys.run_figure_2)
        jobs = [pool.submit(experiment.compare, METHODS, [seed], members=members) for seed in range(seeds)]
        named: dict[Future[Any], str] = {classification: "figure 3", regression: "figure 2"}
        _wait(console, named | {job: f"digits, seed {seed}" for seed, job in enumerate(jobs)})
        results = [result for job in jobs for result in job.result()]
        console.print(comparison_table(results))
        shown = {r.method: (r.probs, r.labels) for r in results if r.seed == 0}
        files = [
            draw_reliability(shown, folder / "reliability-corrupted-digits.png"),
            draw_figure_2(regression.result(), folder / "figure-2-regression-1d.png"),
            draw_figure_3(classification.result(), folder / "figure-3-classification-2d.png"),
        ]
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)
    scores = [{"method": r.method, "seed": r.seed, "clean": r.clean, "corrupted": r.corrupted} for r in results]
    return {"results": scores, "files": files}


def _wait(console: Console, jobs: dict[Future[Any], str]) -> None:
    """Say what is done as it gets done: on a terminal in one place, else a line for each."""
    pace = Pace(len(jobs))
    with console.status(f"training: {len(jobs)} jobs on {WORKERS} processes") as status:
        for done, job in enumerate(as_completed(jobs), start=1):
            left = pace.left(done)
            line = f"{done} of {len(jobs)} jobs done, last {jobs[job]}" + (f", {duration(left)} left" if left else "")
            status.update(f"training: {line}")
            if not console.is_terminal:
                console.print(line)


def comparison_table(results: list[experiment.Result]) -> Table:
    """Mean ± standard deviation over seeds: a row per metric, a column per method."""
    seeds = len({r.seed for r in results})
    table = Table(title=f"Digits, mean ± standard deviation over {seeds} seeds")
    table.add_column("")
    for name in METHODS:
        table.add_column(name, justify="right")
    for where in ("clean", "corrupted"):
        for metric in experiment.METRICS:
            found = [experiment.mean_and_std(results, name, where, metric) for name in METHODS]
            cells = [f"{mean:.4f} ± {std:.4f}" for mean, std in found]
            table.add_row(f"{where} {metric}", *cells, end_section=metric == experiment.METRICS[-1])
    table.caption = (
        "MI: mutual information in nats, the members' disagreement.\n"
        "Better: higher accuracy, lower NLL and ECE, higher MI where inputs are corrupted."
    )
    return table
