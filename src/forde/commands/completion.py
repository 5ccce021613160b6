"""What a shell proposes for a value that was begun: names of methods, data sets and networks, folders of runs.

`forde --install-completion` sets the shell up.
"""

from __future__ import annotations

import glob
from pathlib import Path

DEPTH = 3
"""Folders below the one begun in which runs are looked for."""
MOST = 100
"""Proposals; nobody reads more, and a home folder may hold thousands of folders."""


def methods(incomplete: str) -> list[tuple[str, str]]:
    """Names of methods, each with its line.

    >>> methods("deep")
    [('deep-ensemble', 'Independent members: no repulsion.')]
    """
    from forde.methods import methods as known

    return [(name, line) for name, line in known().items() if name.startswith(incomplete)]


def data_sets(incomplete: str) -> list[str]:
    """Names of data sets, then files and folders.

    >>> data_sets("dig")
    ['digits']
    """
    from forde.data import CATALOGUE

    return [*(name for name in CATALOGUE if name.startswith(incomplete)), *_paths(incomplete)]


def published(incomplete: str) -> list[str]:
    """Names of data sets and of corrupted copies that are published.

    >>> published("tiny")
    ['tinyimagenet', 'tinyimagenet-c']
    """
    from forde.data import CATALOGUE
    from forde.data.publications import PUBLICATIONS

    return [name for name in dict.fromkeys((*CATALOGUE, *PUBLICATIONS)) if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Names of networks.

    >>> models("wrn")
    ['wrn16_4']
    """
    from forde.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Folders of runs, and of ensembles that were saved elsewhere.

    >>> runs("no-such-folder/")
    []
    """
    found: list[str] = []
    for depth in range(1, DEPTH + 1):
        pattern = glob.escape(incomplete) + "/".join("*" * depth) + "/config.json"
        for file in sorted(glob.iglob(pattern))[:MOST]:  # noqa: PTH207 (what was begun may be an absolute path)
            folder = Path(file).parent
            if not (folder.name == "ensemble" and (folder.parent / "config.json").exists()):
                found.append(folder.as_posix())
    return found[:MOST]


def _paths(incomplete: str) -> list[str]:
    found = sorted(glob.glob(glob.escape(incomplete) + "*"))[:MOST]  # noqa: PTH207
    return [f"{path}/" if Path(path).is_dir() else path for path in found]
