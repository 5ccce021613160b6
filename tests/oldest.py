"""Runs a short selection of tests with the oldest torch that the package allows, in an environment of its own.

    make test-oldest                                  # a build for the CPU, where pip finds one
    make test-oldest TORCH=path/to/torch-2.6.0.whl    # another build

pip looks where it is told to (`PIP_FIND_LINKS`, `PIP_EXTRA_INDEX_URL`). On Linux with an x86 processor the plain
`torch==2.6.0` comes with gigabytes of CUDA libraries, and does not import without them, so the CPU's build is asked for
by its full name there; nothing is downloaded where pip does not find it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".venv-oldest"
OLDEST = "2.6.0"
INSTALL_SECONDS, TEST_SECONDS = 120, 300
NETWORKS = (
    "perceptron",
    "perceptron with BatchNorm",
    "convolutions with BatchNorm",
    "scripted module",
    "traced module",
    "torch.compile'd module (AOT) under FoRDE",
)
"""Of the zoo."""
TESTS = (
    "tests/contract",
    "tests/conformance",
    "tests/test_training.py",
    "tests/test_package.py",
    "tests/test_torch_private.py",
    *(f"tests/zoo/test_zoo.py::test_right_or_one_sentence[{name}]" for name in NETWORKS),
)


class LeftOutError(Exception):
    """Why the tests cannot be run here."""


def wheel() -> str:
    """What pip is asked for."""
    with_cuda = platform.system() == "Linux" and platform.machine() == "x86_64"
    return f"torch=={OLDEST}+cpu" if with_cuda else f"torch=={OLDEST}"


def python_of(environment: Path) -> Path:
    """Its interpreter; the environment is made where there is none."""
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(environment, with_pip=True)
    return python


def install(python: Path, torch: str, seconds: float | None) -> None:
    """torch first, so that nothing else is fetched where it cannot be had; then the package and what its tests need."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", "torch"]
    keep = f"torch=={OLDEST}" if Path(torch).exists() else torch
    try:
        for wanted in ([torch], ["-e", f"{ROOT}[dev]", keep]):
            done = subprocess.run(
                [*pip, *wanted], capture_output=True, text=True, check=False, timeout=seconds, cwd=ROOT
            )
            if done.returncode != 0:
                lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
                raise LeftOutError(
                    lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else f"pip cannot install {torch}"
                )
    except subprocess.TimeoutExpired:
        raise LeftOutError(f"installing {torch} took more than {seconds:.0f} s") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run a short selection of tests with the oldest torch.")
    parser.add_argument("--torch", default="", help="what pip installs; a build for the CPU by default")
    parser.add_argument("--optional", action="store_true", help="succeed where torch cannot be had in two minutes")
    options = parser.parse_args(arguments)
    python = python_of(ENVIRONMENT)
    try:
        install(python, options.torch or wheel(), INSTALL_SECONDS if options.optional else None)
    except LeftOutError as reason:
        print(
            f"tests with torch {OLDEST} were left out, because it cannot be had here: {reason}; tell pip where it is "
            "with PIP_FIND_LINKS, or name another build with TORCH=.",
            flush=True,
        )
        return 0 if options.optional else 1
    return run_tests(python)


def run_tests(python: Path) -> int:
    """Their exit status."""
    # The environment may be shared with other clones: what is tested is this one.
    paths = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *TESTS]
    try:
        return subprocess.run(command, cwd=ROOT, env=paths, check=False, timeout=TEST_SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f"tests with torch {OLDEST} took more than {TEST_SECONDS} s, and were stopped.", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
