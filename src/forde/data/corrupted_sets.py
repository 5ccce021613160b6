"""`corrupted`: a test set under a corruption, published where it is there, else generated once and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from forde.corruptions import NAMES, SEVERITIES, VERSION, corrupt, frost_name
from forde.data.corrupted_files import open_array, read_published
from forde.data.description import Images
from forde.data.loading import load_images
from forde.data.locating import Folder, cache_folder, data_folder
from forde.durable import make_folder, whole_file
from forde.errors import FordeError, unknown_name
from forde.hashing import content_key


def corrupted(name: str, corruption: str, severity: int, *, data_dir: Folder | None = None, seed: int = 0) -> Images:
    """The test images of a data set under one of the 19 corruptions at severity 1..5; `source` says whence.

    Published images are used where they are in the data folder (source "published"; the seed has no part in them).
    Else the clean test images are corrupted with the seed, and the result is kept in the folder `generated` for the
    next time (source "generated (seed 0, v1)", and "..., frost (synthetic)" where frost had no photographs).

    >>> import tempfile
    >>> foggy = corrupted("digits", "fog", 3, data_dir=tempfile.mkdtemp())
    >>> foggy.images.shape, foggy.source
    ((899, 8, 8, 1), 'generated (seed 0, v1)')
    """
    if corruption not in NAMES:
        raise unknown_name("corruption", corruption, NAMES)
    if severity not in SEVERITIES or isinstance(severity, bool):
        raise FordeError(f"severity was {severity!r}; give an integer from 1 to 5.")
    folder = data_folder(data_dir)
    published = read_published(name, corruption, severity, folder)
    return published if published is not None else _generated(name, corruption, severity, folder, seed)


def _generated(name: str, corruption: str, severity: int, folder: Path, seed: int) -> Images:
    clean, fingerprint = _clean_test_set(name, folder)
    frost = frost_name() if corruption == "frost" else corruption
    kind = "-synthetic" if frost != corruption else ""
    file = f"{clean.description.name}-{fingerprint}-{corruption}{kind}-{severity}-seed{seed}-v{VERSION}.npy"
    path = _kept(folder / "generated", file, lambda: corrupt(clean.images, corruption, severity, seed=seed))
    images = open_array(path)
    if images.shape != clean.images.shape or images.dtype != np.uint8:
        raise FordeError(f"'{path}' does not fit the test set of {name}; delete it, and it is made again.")
    remark = f", {frost}" if kind else ""
    return Images(images, clean.labels, clean.description, f"generated (seed {seed}, v{VERSION}{remark})")


@lru_cache(maxsize=1)
def _clean_test_set(name: str, folder: Path) -> tuple[Images, str]:
    """The test set and what tells it from others of its name, such as lossless from JPEG copies of CIFAR-10.

    Kept in memory, since callers go through 95 corrupted copies of one set; nobody may write to it.
    """
    clean = load_images(name, "test", folder)
    for array in (clean.images, clean.labels):
        array.flags.writeable = False
    return clean, content_key(clean.images, clean.labels, size=4).hex()


def _kept(folder: Path, file: str, make: Callable[[], np.ndarray]) -> Path:
    """The path of a file in the folder, or in the user's cache where that is read-only; made if it is not there."""
    for place in (folder, cache_folder() / "generated"):
        if (place / file).exists():
            return place / file
    images = make()
    try:
        return _write(folder, file, images)
    except PermissionError:
        return _write(cache_folder() / "generated", file, images)


def _write(folder: Path, file: str, images: np.ndarray) -> Path:
    """Write it so that it is never half there, whoever else writes it."""
    make_folder(folder)
    with whole_file(folder / file, shared=True) as out:
        np.save(out, images, allow_pickle=False)
    return folder / file
