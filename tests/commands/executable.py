"""The command line as it is installed: the script `forde` in a process of its own.

Two thirds of the time of a short command go into the import of torch. So most commands here are run by processes that
have begun already: one that has imported everything, which is forked for each command and calls what the script calls.
`afresh=True` starts the script itself.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SCRIPT = Path(sys.executable).with_name("forde")
WORDS = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "forde"]
READY = """
import json, os, sys, traceback
import forde_command
import forde.__main__, forde.cli
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(asked["cwd"])
            os.environ.clear()
            os.environ.update(asked["env"])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream, number in (("stdout", 1), ("stderr", 2)):
                os.dup2(os.open(asked[stream], os.O_WRONLY | os.O_CREAT), number)
            sys.argv = asked["argv"]
            try:
                code = forde_command.main()
            except SystemExit as ended:
                code = ended.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code or 0))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def environment(**others: str) -> dict[str, str]:
    """One thread, and enough columns that no line is broken."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **others}


@cache
def ready() -> subprocess.Popen[str]:
    """The process that has imported everything."""
    process = subprocess.Popen(
        [sys.executable, "-c", READY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    atexit.register(process.kill)
    return process


def forde(
    *arguments: object, cwd: Path | None = None, afresh: bool = False, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is."""
    words, env = [*WORDS, *map(str, arguments)], env or environment()
    if afresh or not hasattr(os, "fork"):
        return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, env=env, timeout=300)
    with tempfile.TemporaryDirectory() as folder:
        streams = {name: str(Path(folder, name)) for name in ("stdout", "stderr")}
        asked = {"argv": ["forde", *words[len(WORDS) :]], "cwd": str(cwd or Path.cwd()), "env": env, **streams}
        process = ready()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        out, err = (Path(path).read_text(encoding="utf-8") for path in streams.values())
    return subprocess.CompletedProcess(words, code, out, err)


def done(*arguments: object, cwd: Path | None = None, afresh: bool = False) -> str:
    """What a command that must succeed prints on stdout."""
    result = forde(*arguments, cwd=cwd, afresh=afresh)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(*arguments: object, cwd: Path | None = None, afresh: bool = False) -> str:
    """The sentence of a command that must fail."""
    result = forde(*arguments, cwd=cwd, afresh=afresh)
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1 and "Traceback" not in result.stderr
    return result.stderr
