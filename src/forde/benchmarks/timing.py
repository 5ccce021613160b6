"""How things are timed, so that the ratios inside one run mean something.

On a GPU work is queued as in training: the clock runs over several calls between two synchronisations, since one after
each call would measure Python. Jobs run one after another, each alone in memory.

On a CPU all jobs take turns, call by call, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from forde.benchmarks.listening import listening
from forde.errors import FordeError
from forde.torch_private import compiler_was_used
from forde.training.preparing import available_device

Run = Callable[[], object]
Job = Callable[[], AbstractContextManager[Run]]
"""Builds what is timed, hands out one call of it, and takes it down again."""

PRECISIONS = ("float32", "tf32", "bf16")
WARM_UP_CALLS = {"cpu": 2, "cuda": 5}
"""Calls after the first that are not timed either: an engine may look at a few steps before it captures one."""
ROUNDS = 5
"""Groups into which the timed calls on a GPU are split; the median is over them."""
GIB = 2**30


@dataclass(frozen=True)
class Timing:
    """What one job took; without `ms` it failed, and `error` is the sentence that says why."""

    ms: float | None = None
    """Median milliseconds of a call."""
    first_s: float | None = None
    """Seconds of the first call, in which engines compile and capture."""
    peak_gib: float | None = None
    """Most GPU memory that tensors held; None on a CPU."""
    reserved_gib: float | None = None
    """Most GPU memory that was taken from the device, with what lies unused between tensors."""
    note: str | None = None
    """The last that the engine said of itself while it started."""
    error: str | None = None


def checked_device(device: str, precisions: Sequence[str] = ()) -> torch.device:
    """The device, if this machine has it and it can be timed in these precisions.

    >>> checked_device("cpu", ["float32"])
    device(type='cpu')
    """
    found = available_device(device)
    if found.type not in ("cpu", "cuda"):
        raise FordeError(f"device '{device}' cannot be timed, because only 'cpu' and 'cuda' can; choose one of these.")
    if found.type == "cpu" and "tf32" in precisions:
        raise FordeError("precision 'tf32' needs an NVIDIA GPU, but the device is 'cpu'; use float32 or bf16.")
    return found


@contextmanager
def arithmetic(precision: str) -> Iterator[Literal["float32", "bf16"]]:
    """The precision to ask forde for; meanwhile TF32 is off for `"float32"` and on for `"tf32"`.

    >>> with arithmetic("tf32") as precision:
    ...     precision, torch.backends.cuda.matmul.allow_tf32
    ('float32', True)
    """
    if precision == "bf16":
        yield "bf16"
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield "float32"
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def time_jobs(jobs: Sequence[Job], device: torch.device, repeats: int) -> Iterator[Timing]:
    """One timing for each job, in their order; a job that fails does not stop the others.

    Args:
        repeats: timed calls of each job, after a few that are not timed.

    >>> from contextlib import nullcontext
    >>> timing, = time_jobs([lambda: nullcontext(lambda: sum(range(100)))], torch.device("cpu"), repeats=3)
    >>> timing.ms > 0, timing.error
    (True, None)
    """
    if device.type == "cuda":
        return (_alone_on_gpu(job, device, repeats) for job in jobs)
    return _taking_turns(jobs, device, repeats)


def _alone_on_gpu(job: Job, device: torch.device, repeats: int) -> Timing:
    _forget_earlier_jobs()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        with listening() as said, job() as run:
            first_s = seconds(run, 1, device)
            seconds(run, WARM_UP_CALLS["cuda"], device)
            calls = -(-repeats // ROUNDS)
            rounds = [seconds(run, calls, device) / calls for _ in range(min(ROUNDS, repeats))]
            peak, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    except Exception as error:  # what compilers and drivers raise has no common base
        return Timing(error=sentence(error))
    return Timing(1e3 * statistics.median(rounds), first_s, peak / GIB, reserved / GIB, note=said[-1] if said else None)


def _forget_earlier_jobs() -> None:
    """Memory goes back to the device, and compilation starts anew instead of running into its limit of variants."""
    if compiler_was_used():
        torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


@dataclass
class _Turn:
    """A job that is timed among others."""

    run: Run | None = None
    first_s: float | None = None
    note: str | None = None
    taken: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def timing(self) -> Timing:
        if self.error is None and not self.taken:
            return Timing(error="interrupted before anything was measured; run it again.")
        if self.error is not None:
            return Timing(error=self.error)
        return Timing(1e3 * statistics.median(self.taken), self.first_s, note=self.note)


def _taking_turns(jobs: Sequence[Job], device: torch.device, repeats: int) -> Iterator[Timing]:
    turns = [_Turn() for _ in jobs]
    interrupted: KeyboardInterrupt | None = None
    try:
        with ExitStack() as stack:
            for job, turn in zip(jobs, turns, strict=True):
                try:
                    with listening() as said:
                        turn.run = stack.enter_context(job())
                        turn.first_s = seconds(turn.run, 1, device)
                    turn.note = said[-1] if said else None
                except Exception as error:
                    turn.error = sentence(error)
            for call in range(WARM_UP_CALLS["cpu"] + repeats):
                for turn in turns:
                    if turn.run is None or turn.error is not None:
                        continue
                    try:
                        taken = seconds(turn.run, 1, device)
                    except Exception as error:
                        turn.error = sentence(error)
                    else:
                        turn.taken += [taken] if call >= WARM_UP_CALLS["cpu"] else []
    except KeyboardInterrupt as signal:
        interrupted = signal
    yield from (turn.timing for turn in turns)
    if interrupted is not None:
        raise interrupted


def seconds(run: Run, calls: int, device: torch.device) -> float:
    """Seconds until some calls, queued one after another, are done.

    >>> seconds(lambda: None, 3, torch.device("cpu")) < 1
    True
    """
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    wait()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return time.perf_counter() - started


def sentence(error: Exception) -> str:
    """Why a job failed, in one line.

    >>> sentence(RuntimeError("CUDA error\\nand much more"))
    'RuntimeError: CUDA error'
    """
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU's memory is not enough; use fewer members, a smaller batch or memory 'low'."
    first = next(iter(str(error).strip().splitlines()), "no message")
    return first if isinstance(error, FordeError) else f"{type(error).__name__}: {first}"
