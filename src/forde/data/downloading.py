"""`download`: a data set from its publisher to the data folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from forde.data.archives import SUFFIXES, unpack
from forde.data.catalogue import BUILT_IN
from forde.data.locating import Folder, data_folder, places
from forde.data.publications import PUBLICATIONS, File
from forde.data.transfer import fetch
from forde.errors import FordeError, unknown_name

FileProgress = Callable[[File, int, int | None], None]
"""Called with the file, the bytes received so far and, where known, all bytes."""


def download(name: str, data_dir: Folder | None = None, *, progress: FileProgress | None = None) -> Path:
    """Get a data set from its publisher and unpack it; returns its folder. What is there already is left alone.

    The folder appears under its name only when everything has arrived, has its checksum and is unpacked.

    >>> download("digits")
    Traceback (most recent call last):
    forde.errors.FordeError: 'digits' comes with forde; there is nothing to download.
    """
    if name in BUILT_IN:
        raise FordeError(f"'{name}' comes with forde; there is nothing to download.")
    if name not in PUBLICATIONS:
        raise unknown_name("data set to download", name, PUBLICATIONS)
    folder = data_folder(data_dir)
    if found := places(name, folder):
        return found[0]
    destination = folder / name
    if destination.exists() and any(destination.iterdir()):
        raise FordeError(
            f"'{destination}' is in the way: it does not hold {name}; move it or choose another data folder."
        )
    arriving, unpacking = folder / ".downloads" / name, folder / f".{name}.unpacking"
    archives = [_fetched(file, arriving, progress) for file in PUBLICATIONS[name].files]
    shutil.rmtree(unpacking, ignore_errors=True)  # left by an earlier run that was stopped
    unpacking.mkdir(parents=True)
    for archive in archives:
        if archive.name.endswith(SUFFIXES):
            unpack(archive, unpacking)
        else:
            archive.replace(unpacking / archive.name)
    if destination.exists():
        destination.rmdir()
    unpacking.replace(destination)
    shutil.rmtree(arriving)
    return next(iter(places(name, folder)), destination)


def _fetched(file: File, folder: Path, progress: FileProgress | None) -> Path:
    target = folder / file.name
    if target.exists():  # it got its name only after the check
        return target
    report = (lambda received, total: progress(file, received, total)) if progress else None
    return fetch(file.url, target, md5=file.md5, progress=report)
