"""Calls readers in processes of their own and watches their clock and their resident memory.

`Watcher` starts this file as a program, which imports forde once and forks for each call, so that a call costs
milliseconds and starts with the same memory every time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

SAFETY_BYTES = 3 << 30
"""Of address space on top of what imports take, so that a reader that fails the test does not take the machine."""
SAFETY_SECONDS = 60
"""Until a reader that waits is ended."""


class Seen(NamedTuple):
    """What came of one call."""

    error: str
    """The sentence of a FordeError, empty if the call went well."""
    seconds: float
    """Of the processor, since other tests may run at the same time."""
    peak: int
    """Bytes of resident memory, those of Python, torch and Arrow included."""


class Watcher:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def call(self, reader: str, *arguments: object) -> Seen:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([reader, *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["died"] == "", answer
        return Seen(answer["error"], answer["seconds"], answer["peak"])

    def close(self) -> None:
        self._process.communicate()


def _readers() -> dict[str, Any]:
    import PIL.Image  # noqa: F401
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401

    import forde.data
    from forde.data.archives import unpack

    return {
        "load": forde.data.load,
        "corrupted": lambda name, folder: forde.data.corrupted(name, "fog", 1, data_dir=folder),
        "unpack": lambda archive, folder: unpack(Path(archive), Path(folder)),
    }


def _child(read: Any, arguments: list[str], answer: int) -> None:
    from forde.errors import FordeError

    if (sizes := Path("/proc/self/statm")).exists():  # on Linux
        used = int(sizes.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SAFETY_BYTES,) * 2)
    signal.alarm(SAFETY_SECONDS)
    try:
        read(*arguments)
        said = {"error": "", "died": ""}
    except FordeError as error:
        said = {"error": str(error), "died": ""}
    except BaseException as error:
        said = {"error": "", "died": f"{type(error).__name__}: {error}"[:500]}
    os.write(answer, json.dumps(said).encode())
    os._exit(0)


def _serve() -> None:
    readers = _readers()
    for line in sys.stdin:
        reader, *arguments = json.loads(line)
        incoming, outgoing = os.pipe()
        if not (child := os.fork()):
            _child(readers[reader], arguments, outgoing)
        os.close(outgoing)
        with os.fdopen(incoming) as pipe:
            said = pipe.read()
        _, status, usage = os.wait4(child, 0)
        answer = json.loads(said) if said else {"error": "", "died": f"by signal {os.WTERMSIG(status)}"}
        # Linux counts in KiB, macOS in bytes.
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(json.dumps(answer | {"seconds": usage.ru_utime + usage.ru_stime, "peak": peak}), flush=True)


if __name__ == "__main__":
    _serve()
