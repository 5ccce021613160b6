"""Unpacking archives from strangers: files and folders below one folder, and nothing else."""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from forde.errors import FordeError

MAX_BYTES = 32 << 30
MAX_FILES = 2_000_000
BLOCK = 1 << 20
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")


def unpack(archive: Path, folder: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
    """Unpack a zip or tar archive into a folder.

    Refused are paths that lead elsewhere, links and devices, and more files or bytes than the limits, counted as they
    are unpacked, since what an archive says about itself may be wrong.
    """
    members = _zip_members(archive) if archive.suffix == ".zip" else _tar_members(archive)
    left = max_bytes
    try:
        for number, (name, content) in enumerate(members):
            if number >= max_files:
                raise FordeError(f"'{archive}' holds more than {max_files:,} files; it was not unpacked further.")
            target = folder / safe_path(name, archive)
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            left = _write(content, target, left, archive)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, NotImplementedError) as error:
        raise _damaged(archive) from error
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
            raise FordeError(f"'{archive}' holds '{error.filename}' twice; get it again.") from error
        if error.errno is None:  # gzip reports damage so, without a number of the system
            raise _damaged(archive) from error
        raise


def safe_path(name: str, archive: Path) -> PurePosixPath:
    """The path of a member, relative and without a way up.

    >>> safe_path("./train/cat.png", Path("pets.tar"))
    PurePosixPath('train/cat.png')
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise FordeError(
            f"'{archive}' holds the path '{name}', which leads outside its folder; do not trust this file."
        )
    return path


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with _opened_tar(archive) as tar:
        for member in tar:
            if member.isdir():
                yield member.name, None
            elif member.isreg():
                yield member.name, tar.extractfile(member)
            else:
                raise FordeError(f"'{archive}' holds a link or device, '{member.name}'; do not trust this file.")


def _opened_tar(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive, "r|*")  # as a stream: compressed archives are read once
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _damaged(archive) from error


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    try:
        file = zipfile.ZipFile(archive)
    except zipfile.BadZipFile as error:
        raise _damaged(archive) from error
    with file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise FordeError(f"'{archive}' holds a link or device, '{member.filename}'; do not trust this file.")
            if member.is_dir():
                yield member.filename, None
            else:
                with file.open(member) as content:
                    yield member.filename, content


def _write(content: IO[bytes], target: Path, left: int, archive: Path) -> int:
    """Write one file that must not be there yet; returns the bytes that are left to the next ones."""
    with target.open("xb") as out:
        while block := content.read(BLOCK):
            left -= len(block)
            if left < 0:
                raise FordeError(f"'{archive}' unpacks to more bytes than are allowed; it was not unpacked further.")
            out.write(block)
    return left


def _damaged(archive: Path) -> FordeError:
    return FordeError(f"'{archive}' is truncated or damaged; delete it and download it again.")
