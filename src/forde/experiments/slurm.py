"""Cells as jobs of a cluster, through submitit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forde.errors import FordeError, first_line, unknown_name
from forde.experiments.cells import Cell
from forde.experiments.places import Place
from forde.experiments.running import Outcome, is_done, run_cell
from forde.experiments.sweeps import Tell

OPTIONS = ("partition", "gpus", "cpus", "memory", "minutes", "account", "qos", "constraint", "at_once", "cluster")
TIMEOUTS = 100
"""How often a cell that was stopped by the cluster's time limit is queued again."""
POLL = 2.0
"""Seconds between two looks at the jobs."""


def parse(text: str) -> dict[str, str]:
    """`"partition=gpu,gpus=1"` as a dictionary.

    >>> parse("partition=gpu,gpus=1")
    {'partition': 'gpu', 'gpus': '1'}
    """
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign or not value:
            raise FordeError(f"--slurm has '{part}', but settings as in partition=gpu,gpus=1 were expected.")
        if name not in OPTIONS:
            raise unknown_name("setting of --slurm", name, OPTIONS)
        if name in ("gpus", "cpus", "memory", "minutes", "at_once") and not value.isdecimal():
            raise FordeError(f"--slurm has {name}={value}, but a whole number was expected.")
        found[name] = value
    return found


class CellJob:
    """A cell as submitit runs it; when the cluster stops it, it is queued again and goes on from its checkpoint."""

    def __call__(self, cell: Cell, place: Place, minutes: float | None) -> Outcome:
        """Run the cell; its minutes begin when the job does."""
        return run_cell(cell, replace(place, deadline=None if minutes is None else time.time() + 60 * minutes))

    def checkpoint(self, cell: Cell, place: Place, minutes: float | None) -> Any:
        """What submitit queues in place of a job that it has to stop."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, cell, place, minutes)


def run_on_cluster(
    cells: Sequence[Cell], place: Place, settings: dict[str, str], minutes: float | None, tell: Tell
) -> list[Outcome]:
    """Submit one job for each cell that is to do, and wait for them.

    Args:
        settings: partition, gpus, cpus, memory (GB), minutes, account, qos, constraint, at_once (jobs at the same
            time); `cluster=local` runs the jobs on this machine.
        minutes: after which a job stops its training and saves it.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise FordeError("--slurm needs submitit, which is not installed; run: pip install 'forde[cluster]'") from None
    outcomes = [Outcome(cell, "there", "is there") for cell in cells if is_done(cell, place)]
    for outcome in outcomes:
        tell(outcome)
    todo = [cell for cell in cells if not is_done(cell, place)]
    if not todo:
        return outcomes
    try:
        executor = submitit.AutoExecutor(
            folder=place.out / "jobs", cluster=settings.get("cluster", "slurm"), slurm_max_num_timeout=TIMEOUTS
        )
    except RuntimeError as error:
        raise FordeError(
            f"jobs cannot be submitted here ({first_line(error)}); run on a login node of the cluster."
        ) from None
    executor.update_parameters(name="forde", **_parameters(settings))
    place = replace(place, shared=place.shared or settings.get("cluster") == "local")
    with executor.batch():
        jobs = [executor.submit(CellJob(), cell, place, minutes) for cell in todo]
    waiting = dict(zip(todo, jobs, strict=True))
    while waiting:
        for cell, job in list(waiting.items()):
            if job.done():
                outcome = _outcome(cell, job)
                tell(outcome)
                outcomes.append(outcome)
                del waiting[cell]
        if waiting:
            time.sleep(POLL if settings.get("cluster") != "local" else POLL / 10)
    return outcomes


def _parameters(settings: dict[str, str]) -> dict[str, Any]:
    """As submitit names them."""
    names = {
        "partition": "slurm_partition", "gpus": "gpus_per_node", "cpus": "cpus_per_task", "memory": "mem_gb",
        "minutes": "timeout_min", "account": "slurm_account", "qos": "slurm_qos", "constraint": "slurm_constraint",
        "at_once": "slurm_array_parallelism",
    }  # fmt: skip
    given = {names[name]: value for name, value in settings.items() if name in names}
    return {name: int(value) if value.isdecimal() else value for name, value in given.items()}


def _outcome(cell: Cell, job: Any) -> Outcome:
    """What a job returned, or how it died."""
    error = job.exception()
    if error is None:
        result = job.result()
        assert isinstance(result, Outcome)
        return result
    return Outcome(cell, "failed", f"job {job.job_id}: {first_line(error)}; its log is in '{job.paths.stderr}'")
