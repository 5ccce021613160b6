"""A training step made by several local processes together: its time, its messages, and whether it is the same step.

Each number of processes is started anew, as processes that know nothing of each other but a folder. First they make a
few steps in strict float32 and leave what came of the weights, for a comparison with one process. Then steps are timed
as they are, and once more with a clock around every message.

On GPUs each process has one of its own, and NCCL carries messages; where there are fewer GPUs than processes, all share
the first one, and gloo carries messages through the host.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forde.benchmarks.listening import listening
from forde.benchmarks.models import problem
from forde.benchmarks.rows import Row, ratio
from forde.benchmarks.step import Step, prepared
from forde.benchmarks.timing import GIB, ROUNDS, WARM_UP_CALLS, seconds, sentence
from forde.distributed.mesh import ALONE, Mesh, Shape, default_shape, joined, refuse_other_shapes
from forde.ensemble import named_tensors
from forde.errors import FordeError

COMPARED_STEPS = 5
"""After which weights are compared with those of one process; a compiled step is captured in the third."""
LOOK = 0.1
"""Seconds between two looks at whether processes have ended."""


def measure(step: Step, counts: Sequence[int], shape: Shape | None, repeats: int) -> Iterator[list[Row]]:
    """All rows so far, one for each number of processes, after each measurement.

    Args:
        counts: numbers of processes; 1 is added where it lacks.
        shape: of the mesh, where there is more than one process; None is what `fit(mesh="auto")` takes.
    """
    step = replace(step, size=problem(step.model, step.size).size)
    meshes = {count: _shape(step, count, shape) for count in sorted({1, *counts})}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for count, mesh in meshes.items():
            found = _start(step, mesh, repeats, Path(folder) / str(count))
            alone = rows[0]["ms"] if rows else found.get("ms")
            rows.append(_row(step, count, mesh, found, alone, _difference(Path(folder), count)))
            yield rows


def _shape(step: Step, count: int, shape: Shape | None) -> Shape:
    found = (1, 1) if count == 1 else shape or default_shape(step.members, count)
    refuse_other_shapes(found, step.members, count)
    if step.batch % found[1]:
        raise FordeError(
            f"a batch of {step.batch} samples cannot be split over {found[1]} data shards; choose one that {found[1]} "
            "divides."
        )
    return found


def _start(step: Step, mesh: Shape, repeats: int, folder: Path) -> dict[str, Any]:
    """Run the processes of a mesh to their end; what the first one found, or the reason why there is nothing."""
    count = mesh[0] * mesh[1]
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"step": asdict(step), "mesh": mesh, "repeats": repeats}))
    started = [_process(rank, count, folder) for rank in range(count)]
    try:
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started):
                break  # the others wait for the one that failed
            time.sleep(LOOK)
        if any(process.poll() for process in started):
            time.sleep(LOOK)
            return {"error": _why(folder)}
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        return found
    finally:
        for process in started:
            process.kill()
            process.wait()


def _process(rank: int, count: int, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"errors{rank}.txt").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "forde.benchmarks.processes", str(folder)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


def _why(folder: Path) -> str:
    """The sentence of the first process that had one."""
    said = sorted(folder.glob("failed*.json"), key=lambda path: path.stat().st_mtime)
    if said:
        reason: str = json.loads(said[0].read_text())["error"]
        return reason
    errors = [line for path in sorted(folder.glob("errors*.txt")) for line in path.read_text().splitlines() if line]
    return errors[-1] if errors else "a process ended without a word."


def _row(  # noqa: PLR0917
    step: Step, count: int, mesh: Shape, found: dict[str, Any], alone: Any, difference: float | None
) -> Row:
    return {
        "processes": count,
        "mesh": f"{mesh[0]}x{mesh[1]}",
        "messages by": found.get("backend") or "–",
        "threads": found.get("threads"),
        "method": step.label,
        "engine": step.engine,
        "model": step.model,
        "members": step.members,
        "batch": step.batch,
        "size": step.size,
        "precision": step.precision,
        "memory": step.memory,
        "device": step.device,
        "ms": found.get("ms"),
        "ratio_to_one_process": ratio(found.get("ms"), alone),
        "messages": found.get("messages"),
        "sent_kb": found.get("sent_kb"),
        "waited_ms": found.get("waited_ms"),
        "movement_error": difference,
        "peak_memory_gib": found.get("peak_memory_gib"),
        "first_step_s": found.get("first_step_s"),
        "note": found.get("note"),
        "error": found.get("error"),
    }


def _difference(folder: Path, count: int) -> float | None:
    """Largest relative error of a member's movement Δθ in the first steps: ‖Δθ − Δθ_one‖ / ‖Δθ_one‖."""
    from safetensors.torch import load_file

    paths = [folder / str(n) / "moved.safetensors" for n in (1, count)]
    if count == 1 or not all(path.exists() for path in paths):
        return None
    return largest_error(*map(load_file, paths))


def largest_error(expected: dict[str, Tensor], found: dict[str, Tensor]) -> float:
    """Over members, the length of what differs between two movements, relative to that of the first.

    >>> one = {"members.0.weight": torch.tensor([3.0, 4.0]), "members.1.weight": torch.ones(2)}
    >>> largest_error(one, {**one, "members.0.weight": torch.tensor([3.0, 4.5])})
    0.1
    """
    squares: dict[str, list[float]] = {}
    for name, moved in expected.items():
        total = squares.setdefault(name.split(".")[1], [0.0, 0.0])
        total[0] += float((found[name].double() - moved.double()).square().sum())
        total[1] += float(moved.double().square().sum())
    return max((error / size) ** 0.5 if size else 0.0 for error, size in squares.values())


# In each process


@dataclass
class Messages:
    """What was sent and waited for."""

    count: int = 0
    sent: float = 0.0
    """Bytes that this process sends if messages go round in a ring."""
    seconds: float = 0.0


@contextmanager
def observed(device: torch.device) -> Iterator[Messages]:
    """Count what torch sends between processes meanwhile; on a GPU what is queued before a message is waited for.

    >>> with observed(torch.device("cpu")) as messages:
    ...     pass
    >>> messages
    Messages(count=0, sent=0.0, seconds=0.0)
    """
    found = Messages()
    rings: dict[str, Callable[..., float]] = {
        "all_gather": lambda size, rows, tensor: tensor.nbytes * (size - 1),
        "all_reduce": lambda size, tensor, *_: 2 * tensor.nbytes * (size - 1) / size,
        "broadcast": lambda size, tensor, *_: tensor.nbytes * (size - 1) / size,
    }
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)

    def watching(send: Callable[..., Any], ring: Callable[..., float]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            wait()
            started = time.perf_counter()
            done = send(*args, **kwargs)
            wait()
            found.seconds += time.perf_counter() - started
            found.count += 1
            found.sent += ring(dist.get_world_size(kwargs.get("group")), *args)
            return done

        return call

    before = {name: getattr(dist, name) for name in rings}
    try:
        for name, ring in rings.items():
            setattr(dist, name, watching(before[name], ring))
        yield found
    finally:
        for name, send in before.items():
            setattr(dist, name, send)


def _moved(step: Step, mesh: Mesh) -> dict[str, Tensor]:
    """How weights have moved after a few steps in strict float32, on the host."""
    with (
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        prepared(replace(step, precision="float32"), mesh) as training,
    ):
        ensemble = training.engine.whole
        before = {name: tensor.detach().clone() for name, tensor in ensemble.named_parameters()}
        for _ in range(COMPARED_STEPS):
            training.run()
        training.engine.settle()
        training.engine.collect()
        after = named_tensors(ensemble)
        return {name: (after[name].detach() - start).cpu().contiguous() for name, start in before.items()}


def _time(step: Step, mesh: Mesh, repeats: int) -> dict[str, Any]:
    device = torch.device(step.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with listening() as said, prepared(step, mesh) as training:
        first = seconds(training.run, 1, device)
        seconds(training.run, WARM_UP_CALLS[device.type], device)
        calls = -(-repeats // ROUNDS)
        rounds = [seconds(training.run, calls, device) / calls for _ in range(min(ROUNDS, repeats))]
        with observed(device) as messages:
            seconds(training.run, repeats, device)
        training.engine.settle()
    made = repeats * step.every
    cuda = device.type == "cuda"
    return {
        "ms": 1e3 * statistics.median(rounds) / step.every,
        "first_step_s": first,
        "messages": messages.count / made if mesh is not ALONE else None,
        "sent_kb": messages.sent / made / 1e3 if mesh is not ALONE else None,
        "waited_ms": 1e3 * messages.seconds / made if mesh is not ALONE else None,
        "peak_memory_gib": torch.cuda.max_memory_allocated(device) / GIB if cuda else None,
        "note": next((line for line in reversed(said) if not line.startswith("engine: on ")), None),
    }


def _mean(found: list[dict[str, Any]], key: str) -> float | None:
    numbers = [each[key] for each in found if each[key] is not None]
    return statistics.mean(numbers) if numbers else None


def work(folder: Path) -> None:
    """One process: measure, and let the first one write down what all found."""
    from safetensors.torch import save_file

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job = json.loads((folder / "job.json").read_text())
    step, shape = Step(**job["step"]), (job["mesh"][0], job["mesh"][1])
    backend = "gloo"
    if step.device.startswith("cuda"):
        own = torch.cuda.device_count() >= size > 1
        backend = "nccl" if own else "gloo"
        step = replace(step, device=f"cuda:{rank if own else torch.device(step.device).index or 0}")
    threads = max(1, torch.get_num_threads() // size)
    torch.set_num_threads(threads)
    with ExitStack() as stack:
        if size > 1:
            dist.init_process_group(backend, init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
            stack.callback(dist.destroy_process_group)
        mesh = stack.enter_context(joined(shape, torch.device(step.device)))
        moved = _moved(step, mesh)
        found = mesh.all_gather_values(_time(step, mesh, job["repeats"]))
        if mesh.is_main_process:
            save_file(moved, folder / "moved.safetensors")
            means = {key: _mean(found, key) for key in ("messages", "sent_kb", "waited_ms")}
            told = {**found[0], **means, "threads": threads, "backend": backend if size > 1 else None}
            (folder / "found.json").write_text(json.dumps(told))


def main(arguments: Sequence[str] | None = None) -> None:
    (folder,) = map(Path, sys.argv[1:] if arguments is None else arguments)
    try:
        work(folder)
    except Exception as error:  # what compilers and drivers raise has no common base
        (folder / f"failed{os.environ['RANK']}.json").write_text(json.dumps({"error": sentence(error)}))
        raise


if __name__ == "__main__":
    main()
