"""Unpacking archives from strangers: files and folders below one folder, and nothing else."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from forde.errors import FordeError
from forde.reading.files import MAX_SHOWN

MAX_BYTES = 32 << 30
MAX_FILES = 2_000_000
MAX_RATIO = 50
"""How many times larger than an archive its files may be, images being hardly compressed; small ones are let off."""
LET_OFF = 64 << 20
ENTRY = 4_096
"""Bytes that a file or folder takes on most disks, however little it holds."""
BLOCK = 1 << 20
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")


def unpack(archive: Path, folder: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
    """Unpack a zip or tar archive into a folder.

    Refused are paths that lead elsewhere, links and devices, and more files or bytes than the limits, counted as they
    are unpacked, since what an archive says about itself may be wrong.
    """
    try:
        members = _zip_members(archive) if archive.suffix == ".zip" else _tar_members(archive)
        left = min(max_bytes, LET_OFF + MAX_RATIO * archive.stat().st_size)
        for number, (name, content) in enumerate(members):
            if number >= max_files:
                raise FordeError(f"'{archive}' holds more than {max_files:,} files; it was not unpacked further.")
            path = safe_path(name, archive)
            left = _less(left, ENTRY * len(path.parts), archive)  # empty files cost something, too, and so do folders
            target = folder / path
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            left = _write(content, target, left, archive)
    except FordeError:
        raise
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise FordeError(f"'{archive}' holds {error.filename!r} twice; get it again.") from error
    except OSError as error:
        if error.errno is None:  # gzip reports damage so, without a number of the system
            raise _damaged(archive) from error
        raise FordeError(
            f"'{archive}' cannot be unpacked to '{folder}' ({error.strerror}); make room or choose another folder."
        ) from error
    except Exception as error:  # a broken archive can raise anything, from zlib.error to OverflowError
        raise _damaged(archive) from error


def safe_path(name: str, archive: Path) -> PurePosixPath:
    """The path of a member, relative and without a way up.

    >>> safe_path("./train/cat.png", Path("pets.tar"))
    PurePosixPath('train/cat.png')
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise FordeError(
            f"'{archive}' holds the path {name[:MAX_SHOWN]!r}, which leads outside its folder; do not trust this file."
        )
    if not name.isprintable():  # line ends, codes that a terminal obeys, bytes that are no text
        raise FordeError(f"'{archive}' holds the path {name[:MAX_SHOWN]!r}, which is not text; do not trust this file.")
    return path


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with archive.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with (
        gzip.open(archive) if compressed else archive.open("rb") as opened,
        tarfile.TarFile(fileobj=cast(IO[bytes], _Modest(opened))) as tar,
    ):
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would remember them all
            if member.isdir():
                yield member.name, None
            elif member.isreg():
                yield member.name, tar.extractfile(member)
            else:
                raise _special(archive, member.name)


class _Modest:
    """A file that gives no more than a block at once: names and notes in a tar archive are read whole."""

    def __init__(self, file: gzip.GzipFile | IO[bytes]) -> None:
        self._read, self.seek, self.tell = file.read, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > BLOCK:
            raise tarfile.ReadError("a name or note of more than a block")
        return self._read(size)


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _special(archive, member.filename)
            if member.is_dir():
                yield member.filename, None
            elif member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                with file.open(member) as content:
                    yield member.filename, content
            else:  # the others reserve as much memory as the archive says
                raise _damaged(archive)


def _write(content: IO[bytes], target: Path, left: int, archive: Path) -> int:
    """Write one file that must not be there yet; returns the bytes that are left to the next ones."""
    with target.open("xb") as out:
        while True:
            block = content.read(BLOCK)
            left = _less(left, len(block), archive)
            if not block:
                return left
            out.write(block)


def _less(left: int, taken: int, archive: Path) -> int:
    if taken > left:
        raise FordeError(f"'{archive}' unpacks to more bytes than are allowed; it was not unpacked further.")
    return left - taken


def _special(archive: Path, name: str) -> FordeError:
    return FordeError(f"'{archive}' holds a link or device, {name[:MAX_SHOWN]!r}; do not trust this file.")


def _damaged(archive: Path) -> FordeError:
    return FordeError(f"'{archive}' is truncated or damaged; delete it and download it again.")
