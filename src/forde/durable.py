"""Files that are whole or not there at all: written beside their destination, synced to the disk, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from forde.errors import FordeError

TEMPORARY = ".tmp"


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content; a crash at any moment leaves the old content or the new, never a mixture.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_whole(path, b"all of it")
    >>> path.read_bytes()
    b'all of it'
    """
    with whole_file(path) as file:
        _pour(file, content)


@contextmanager
def whole_file(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of `path` once it is whole and on the disk.

    Args:
        path: as it was until then, also when writing fails.
        shared: whether others may write the same file meanwhile; the last one counts.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> with whole_file(path, shared=True) as file:
    ...     _ = file.write(b"1 2"), path.exists()
    >>> path.read_bytes()
    b'1 2'
    """
    mark = f".{uuid4().hex[:12]}" if shared else ""
    temporary = path.with_name(f"{path.name}{mark}{TEMPORARY}")
    temporary.unlink(missing_ok=True)  # a link of that name must not be followed
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):  # what is there of it takes space that may just have run out
            temporary.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, so that they last: each is an entry of the one above.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "runs" / "a"
    >>> make_folder(folder)
    >>> folder.is_dir()
    True
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and wait until it is on the disk."""
    with path.open("ab") as file:
        _pour(file, f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def _pour(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def sync_folder(folder: Path) -> None:
    """Make a rename last: on POSIX it is the folder that has changed."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explaining_writes(folder: Path, advice: str) -> Iterator[None]:
    """Turns a full disk or a read-only folder into a sentence with what to do about it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FordeError(f"could not write into '{folder}': {reason}; {advice}.") from None
