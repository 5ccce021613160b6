"""`python -m forde` and the `forde` command: user errors are one sentence and a non-zero exit, never a traceback."""

from __future__ import annotations

import sys

from forde.errors import FordeError, RunInterruptedError


def main() -> int:
    """Run the command line; returns its exit code."""
    try:
        from forde.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"The command line needs '{error.name}', which is not installed; run: pip install 'forde[cli]'",
            file=sys.stderr,
        )
        return 1
    try:
        app(prog_name="forde")
    except RunInterruptedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except FordeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(
            f"Error: this needs '{error.name}', which is not installed; run: pip install 'forde[all]'", file=sys.stderr
        )
        return 1
    except OSError as error:
        print(f"Error: {error.strerror}: '{error.filename}'; choose another file or folder.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
