"""What the script `forde` calls. It lies outside the package, so that Ctrl-C during its import is quiet."""

from __future__ import annotations

import signal


def main() -> int:
    """Run the command line; returns its exit code."""
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:  # not where it is ignored, as for what a script started with `&`
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from forde.__main__ import main as run

    signal.signal(signal.SIGINT, heard)
    return run()
