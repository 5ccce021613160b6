"""The git commit of the current folder, asked for in a way that runs nothing that the folder brings along.

A repository's own configuration names programs that git runs while it only looks: a file system monitor, hooks, filters
of file contents, and, for objects that are missing, whatever its remote is. A folder may be a stranger's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

GIT_SECONDS = 10
QUIET = (
    "--no-optional-locks",  # no index is written, so no hook sees it change
    "-c", "core.fsmonitor=false",
    "-c", f"core.hooksPath={os.devnull}",
    "-c", "protocol.allow=never",  # a partial clone fetches what it lacks
)  # fmt: skip


def git_state() -> dict[str, Any] | None:
    """Commit of the current folder and whether it was changed since; None where there is no repository.

    Whether files were changed is None, for unknown, where git would run the repository's own filters to find out, and
    changes in submodules, which have configurations of their own, are not looked at.
    """
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    if _has_filters():
        return {"commit": commit, "dirty": None}
    changes = _git("status", "--porcelain", "--ignore-submodules=all")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _has_filters() -> bool:
    """Whether the repository itself, not the user's or the machine's settings, names filters."""
    scopes = _git("config", "--show-scope", "--name-only", "--get-regexp", r"^filter\.", empty=True)
    return scopes is None or any(not line.startswith(("global", "system")) for line in scopes.splitlines())


def _git(*arguments: str, empty: bool = False) -> str | None:
    """What git prints, or None where it fails; with `empty`, "" where it has nothing to say."""
    found = shutil.which("git")
    if found is None or not Path(found).is_absolute():  # through "." in PATH, the folder's own
        return None
    try:
        done = subprocess.run(
            [found, *QUIET, *arguments], capture_output=True, text=True, check=False, timeout=GIT_SECONDS,
            stdin=subprocess.DEVNULL, env={**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    if done.returncode == 1 and empty and not done.stdout:
        return ""
    return done.stdout.strip() if done.returncode == 0 else None
