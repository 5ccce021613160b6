"""The file that features are kept in: tensors `features` `[N, Q]` and `labels` `[N]`, and what they are, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forde.data.features.shards import ADVICE, Rows
from forde.durable import explaining_writes, make_folder, write_whole
from forde.errors import FordeError
from forde.hashing import Sha256

FORMAT = 1
KEY = "forde.features"
"""The key of the JSON in the file's metadata."""


def write_file(path: Path, rows: Rows, about: dict[str, Any]) -> dict[str, Any]:
    """Write a whole file; returns `about` with the checksum of the tensors."""
    from safetensors.torch import save

    about = {**about, "sha256": checksum(rows)}
    with explaining_writes(path.parent, ADVICE):
        make_folder(path.parent)
        tensors = {"features": rows.features, "labels": rows.labels}
        write_whole(path, save(tensors, metadata={KEY: json.dumps(about)}))
    return about


def read_about(path: Path) -> dict[str, Any]:
    """What a file says of itself; its tensors are not read."""
    with _opened(path) as file:
        return _about(file, path)


def read_file(path: Path) -> tuple[Rows, dict[str, Any]]:
    """A file's tensors as they are stored, compared with their checksum."""
    with _opened(path) as file:
        about = _about(file, path)
        names = set(file.keys())
        if names != {"features", "labels"}:
            raise FordeError(f"'{path}' holds {sorted(names)}, but features and labels were expected; make it again.")
        # Clones: what safetensors gives are views of the file, and the program would die if that were cut short.
        rows = Rows(file.get_tensor("features").clone(), file.get_tensor("labels").clone())
    if rows.features.dim() != 2 or rows.labels.shape != rows.features.shape[:1]:
        raise FordeError(
            f"'{path}' holds features of shape {list(rows.features.shape)} and labels of shape "
            f"{list(rows.labels.shape)}, but [N, Q] and [N] were expected; make it again."
        )
    if about.get("sha256") != checksum(rows):
        raise FordeError(f"the features in '{path}' are not those that were saved: the file is damaged; make it again.")
    return rows, about


def checksum(rows: Rows) -> str:
    """Of types, shapes and values."""
    digest = Sha256()
    for tensor in rows:
        digest.add(repr((str(tensor.dtype), tuple(tensor.shape))))
        digest.add(tensor)
    return digest.hex()


def _about(file: Any, path: Path) -> dict[str, Any]:
    try:
        about = json.loads((file.metadata() or {})[KEY])
    except (KeyError, ValueError):
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise FordeError(f"'{path}' is no file of features, or of another version; make it with forde features.")
    return about


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        if path.exists() and not path.is_file():
            raise OSError("reading a pipe or a device would not end")
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise FordeError(f"the file of features '{path}' is missing; make it with forde features.") from None
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        if isinstance(error, FordeError):
            raise
        raise FordeError(f"'{path}' is truncated or damaged; delete it and make it again.") from None
