"""Make one mistake in a copy of the source and see whether the tests that should notice it do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LIMIT = 600
"""Seconds that the tests of one mistake may take; a mistake that hangs them counts as noticed."""
PASSED, FAILED = 0, 1
"""What pytest exits with; anything else means that it could not run the tests."""


@dataclass(frozen=True)
class Mistake:
    """An edit of one file that makes the library wrong without making it crash."""

    name: str
    """Short, unique, in words joined by hyphens."""
    file: str
    """Below `src/forde`."""
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """What should notice it, as pytest takes it: `tests/test_training.py::TestData::test_last_batch`."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mistake."""

    noticed: bool
    says: str


def problem(mistake: Mistake, source: Path = SOURCE) -> str | None:
    """Why a mistake can no longer be made or tried, or None."""
    path = source / "forde" / mistake.file
    if not path.is_file():
        return f"{mistake.name}: src/forde/{mistake.file} does not exist; name the file that the code moved to."
    found = path.read_text(encoding="utf-8").count(mistake.old)
    if found != 1:
        return (
            f"{mistake.name}: its old text occurs {found} times in src/forde/{mistake.file}, but once was expected; "
            "write down the text as it is there now, so that the same mistake is made."
        )
    missing = [test for test in mistake.tests if not (ROOT / test.partition("::")[0]).exists()]
    return f"{mistake.name}: {missing[0]} does not exist; name the test that notices it." if missing else None


@contextmanager
def copied(mistakes: Iterable[Mistake] = (), source: Path = SOURCE) -> Iterator[Path]:
    """A copy of the source with these mistakes in it."""
    with TemporaryDirectory(prefix="forde-mistake-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for mistake in mistakes:
            if complaint := problem(mistake, source):
                raise SystemExit(complaint)
            path = copy / "forde" / mistake.file
            path.write_text(path.read_text(encoding="utf-8").replace(mistake.old, mistake.new), encoding="utf-8")
        yield copy


def run_tests(tests: Sequence[str], source: Path) -> tuple[int | None, str]:
    """Pytest's exit code (None if it did not end) and output, with the package taken from `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    # Without this, tests could see the installed package and pass whatever was changed.
    where = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('forde').origin)"]
    found = subprocess.run(where, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_relative_to(source):
        raise SystemExit(f"python imports {found} and not the copy in {source}.")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


def attempt(mistake: Mistake, source: Path = SOURCE) -> Outcome:
    """Make the mistake and run the tests that are named for it."""
    with copied([mistake], source) as copy:
        code, output = run_tests(mistake.tests, copy)
    if code is None:
        return Outcome(True, f"the tests did not end within {LIMIT} s")
    if code == FAILED:
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return Outcome(True, failed[0].split(" - ")[0].split()[1] if failed else "a test failed")
    if code == PASSED:
        return Outcome(False, "all tests passed")
    return Outcome(False, f"pytest could not run the tests (exit code {code}):\n{output}")
