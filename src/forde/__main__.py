"""`python -m forde` and the `forde` command: user errors are one sentence and a non-zero exit, never a traceback."""

from __future__ import annotations

import os
import signal
import sys

from forde.errors import FordeError, RunInterruptedError


def main() -> int:
    """Run the command line; returns its exit code."""
    try:
        from forde.cli import app
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        _say(f"The command line needs '{error.name}', which is not installed; run: pip install 'forde[cli]'")
        return 1
    try:
        app(prog_name="forde")
    except RunInterruptedError as error:
        _say(str(error))
        return error.exit_code
    except FordeError as error:
        _say(f"Error: {error}")
        return 1
    except ModuleNotFoundError as error:
        _say(f"Error: this needs '{error.name}', which is not installed; run: pip install 'forde[all]'")
        return 1
    except OSError as error:
        _say(f"Error: {error.strerror}: '{error.filename}'; choose another file or folder.")
        return 1
    return 0


def _say(sentence: str) -> None:
    """Print to stderr; a terminal that is closed must not change the exit code."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        # What is still buffered goes nowhere, instead of failing once more when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)


if __name__ == "__main__":
    sys.exit(main())
