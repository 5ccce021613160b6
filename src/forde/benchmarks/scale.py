"""How a step's cost grows with members, batch and input size: one of them at a time, around a centre."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from forde.benchmarks.models import problem
from forde.benchmarks.rows import Row, ratio
from forde.benchmarks.step import Step, time_together
from forde.benchmarks.timing import Timing
from forde.errors import unknown_name

AXES = ("members", "batch", "size")


def measure(centre: Step, axes: Mapping[str, Sequence[int]], repeats: int) -> Iterator[list[Row]]:
    """All rows so far, after each measurement.

    Args:
        centre: what all axes pass through.
        axes: values of `"members"`, `"batch"` and `"size"`; the centre's own are added where they lack.

    >>> *_, rows = measure(Step("deep-ensemble", members=2, batch=4), {"batch": [8]}, repeats=2)
    >>> [(row["axis"], row["batch"]) for row in rows], rows[0]["ratio_to_linear"]
    ([('batch', 4), ('batch', 8)], 1.0)
    """
    centre = replace(centre, size=problem(centre.model, centre.size).size)
    lines = {axis: _along(centre, axis, values) for axis, values in axes.items()}
    rows: list[Row] = []
    for axis, line in lines.items():
        before = list(rows)
        timed: dict[Step, Timing] = {}
        for step, timing in time_together(line, repeats):
            timed[step] = timing
            # Made anew each time, since the centre may come after those that are compared with it.
            rows = before + [_row(axis, one, timed[one], linear_ms(one, centre, timed)) for one in timed]
            yield rows


def sizes_around(centre: Step) -> list[int]:
    """Half, once and twice the size of the centre's inputs.

    >>> sizes_around(Step("forde-pca", model="resnet18"))
    [16, 32, 64]
    """
    usual = problem(centre.model, centre.size).size
    return [max(1, usual // 2), usual, 2 * usual]


def _along(centre: Step, axis: str, values: Sequence[int]) -> list[Step]:
    """Steps along one axis, in ascending order, checked."""
    if axis not in AXES:
        raise unknown_name("axis", axis, AXES)
    line = [replace(centre, **{axis: value}) for value in sorted({*values, getattr(centre, axis)})]
    for step in line:
        step.check()
    return line


def work(step: Step) -> int:
    """What a cost that grows linearly with everything would be proportional to: members × batch × input values.

    >>> work(Step("forde-pca", model="resnet18", members=2, batch=10))
    61440
    """
    return step.members * step.batch * problem(step.model, step.size).n_inputs


def linear_ms(step: Step, centre: Step, timed: Mapping[Step, Timing]) -> float | None:
    """What a step would take if cost were proportional to work; None while the centre has no time.

    >>> centre = Step("forde-pca", members=2)
    >>> linear_ms(Step("forde-pca", members=6), centre, {centre: Timing(ms=10.0)})
    30.0
    """
    at_centre = timed[centre].ms if centre in timed else None
    return None if at_centre is None else at_centre * work(step) / work(centre)


def _row(axis: str, step: Step, timing: Timing, linear: float | None) -> Row:
    return {
        "axis": axis,
        "method": step.label,
        "engine": step.engine,
        "model": step.model,
        "members": step.members,
        "batch": step.batch,
        "size": step.size,
        "precision": step.precision,
        "memory": step.memory,
        "device": step.device,
        "ms": timing.ms,
        "ms_per_member": ratio(timing.ms, step.members),
        "ms_per_sample": ratio(timing.ms, step.batch),
        "ratio_to_linear": ratio(timing.ms, linear),
        "peak_memory_gib": timing.peak_gib,
        "reserved_gib": timing.reserved_gib,
        "first_step_s": timing.first_s,
        "note": timing.note,
        "error": timing.error,
    }
