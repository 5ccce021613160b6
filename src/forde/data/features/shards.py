"""Features that are not finished: a folder of pieces beside the file that they will become.

Each piece holds the features and labels of some consecutive batches and is written whole or not at all, so that a
process that is killed loses only what it has computed since the last piece.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from forde.durable import explaining_writes, make_folder, write_whole
from forde.errors import FordeError
from forde.folder_lock import locked

log = logging.getLogger(__name__)

PLAN = "plan.json"
ADVICE = "make room or choose another folder, and run the same again: it goes on where it was"


class Rows(NamedTuple):
    """Features `[n, Q]` and labels `[n]` of consecutive samples."""

    features: Tensor
    labels: Tensor


def shards_of(file: Path) -> Path:
    """The folder with the pieces of a file of features.

    >>> shards_of(Path("features/train.safetensors")).as_posix()
    'features/train.parts'
    """
    return file.with_name(f"{file.stem}.parts")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder of pieces, or say who does; afterwards it is not there if nothing is in it."""
    with explaining_writes(folder, ADVICE):
        make_folder(folder)
    try:
        with locked(folder):
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


class Shards:
    """The pieces for one file, found again by the number of their first sample."""

    def __init__(self, file: Path, plan: dict[str, Any]) -> None:
        self.folder = shards_of(file)
        self.plan = plan
        self.stops: dict[int, int] = {}
        """First sample → the one after the last."""
        self._prints: dict[int, str] = {}
        if (self.folder / PLAN).exists():
            self._check_plan(file)
            for path in sorted(self.folder.glob("*.safetensors")):
                self._note(path)

    def _check_plan(self, file: Path) -> None:
        try:
            there = json.loads((self.folder / PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise FordeError(f"'{self.folder / PLAN}' is damaged; delete the folder '{self.folder}'.") from None
        if found := first_difference(there, self.plan):
            raise FordeError(
                f"'{file}' was begun with {found[0]} {found[1]!r}, but {found[2]!r} is given; give the same again, or "
                f"delete the folder '{self.folder}'."
            )

    def _note(self, path: Path) -> None:
        from safetensors import safe_open

        try:
            with safe_open(path, framework="pt") as piece:
                n = piece.get_slice("labels").get_shape()[0]
                start, print_ = int(path.stem), str((piece.metadata() or {})["rows"])
                if piece.get_slice("features").get_shape()[0] != n:
                    raise ValueError("another number of labels")
        except Exception:  # a damaged file can raise anything
            log.warning("'%s' is damaged; its samples are computed again.", path)
            path.unlink()
            return
        self.stops[start], self._prints[start] = start + n, print_

    def save(self, start: int, rows: Rows, fingerprint: str) -> None:
        """Write a piece; `fingerprint` is that of the samples so far."""
        from safetensors.torch import save

        with explaining_writes(self.folder, ADVICE):
            make_folder(self.folder)
            if not (self.folder / PLAN).exists():
                write_whole(self.folder / PLAN, (json.dumps(self.plan, indent=2) + "\n").encode())
            content = save({"features": rows.features, "labels": rows.labels}, metadata={"rows": fingerprint})
            write_whole(self.folder / f"{start:010d}.safetensors", content)
        self.stops[start] = start + len(rows.labels)

    def check(self, start: int, fingerprint: str) -> None:
        """Refuse a loader that gives other samples than when the piece from `start` was made."""
        if self._prints.get(start, fingerprint) != fingerprint:
            raise FordeError(
                f"the loader gives other samples than those of which '{self.folder}' holds features; turn shuffling "
                "and augmentation off, or delete that folder."
            )

    def read(self, start: int) -> Rows:
        """A piece that is there."""
        from safetensors.torch import load_file

        path = self.folder / f"{start:010d}.safetensors"
        try:
            piece = load_file(path)
        except Exception:
            raise FordeError(f"'{path}' is damaged; delete it and run the same again.") from None
        return Rows(piece["features"], piece["labels"])

    def delete(self) -> None:
        """They are in the finished file."""
        shutil.rmtree(self.folder, ignore_errors=True)


def first_difference(there: Any, here: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The name of the first value in which two JSON objects differ, and both values.

    >>> first_difference({"a": {"b": 1}}, {"a": {"b": 2}})
    ('a.b', 1, 2)
    """
    if not isinstance(there, dict) or not isinstance(here, dict):
        return None if there == here else (name, there, here)
    for key in [*here, *(key for key in there if key not in here)]:
        inside = f"{name}.{key}" if name else str(key)
        if found := first_difference(there.get(key), here.get(key), inside):
            return found
    return None
