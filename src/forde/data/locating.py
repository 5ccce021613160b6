"""Where data sets lie on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from forde.errors import FordeError

Folder = str | os.PathLike[str]

# Places below the data folder, tried in this order.
_PLACES = {
    "cifar10": ("cifar10", "cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifar-10"),
    "cifar100": ("cifar100", "cifar100/cifar-100-python", "cifar-100-python", "cifar-100"),
    "tinyimagenet": ("tinyimagenet", "tinyimagenet/tiny-imagenet-200", "tiny-imagenet-200"),
    "cinic10": ("cinic10", "cinic10/CINIC-10", "CINIC-10", "cinic-10"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw", "fashion_mnist"),
    "mnist": ("mnist", "MNIST/raw"),
    "cifar10-c": ("cifar10-c", "cifar10-c/CIFAR-10-C", "CIFAR-10-C"),
    "cifar100-c": ("cifar100-c", "cifar100-c/CIFAR-100-C", "CIFAR-100-C"),
    # The four extra corruptions come in an archive of their own, so this set may be in two places.
    "tinyimagenet-c": (
        "tinyimagenet-c/Tiny-ImageNet-C",
        "tinyimagenet-c/Tiny-ImageNet-C-extra",
        "tinyimagenet-c",
        "Tiny-ImageNet-C",
        "Tiny-ImageNet-C-extra",
        "TinyImageNet-C",
    ),
}

PACKAGES = {"fashion-mnist": ("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist"))}
"""Packages of Debian and Ubuntu that bring a set, and where."""

# A place holds the set when one of these is there: one is enough, so that a missing file is named by the reader.
_SIGNS = {
    "cifar10": ("data_batch_*", "test_batch", "train*.parquet", "test*.parquet"),
    "cifar100": ("meta", "train", "test", "train*.parquet", "test*.parquet"),
    "tinyimagenet": ("wnids.txt", "train/n*", "val/val_annotations.txt"),
    "cinic10": ("*/airplane", "*/automobile"),
    "fashion-mnist": ("*-images?idx3-ubyte*", "*-labels?idx1-ubyte*"),
    "mnist": ("*-images?idx3-ubyte*", "*-labels?idx1-ubyte*"),
    "cifar10-c": ("*.npy",),
    "cifar100-c": ("*.npy",),
    "tinyimagenet-c": ("*/[1-5]/n*",),
}

_FOLDER_SETS = ("tinyimagenet", "cinic10", "tinyimagenet-c")
"""Those whose signs may be folders."""


def cache_folder() -> Path:
    """The user's cache folder for forde, after the system's custom.

    >>> cache_folder().name
    'forde'
    """
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "forde"


def data_folder(data_dir: Folder | None = None) -> Path:
    """The folder of data sets: the one given, else that in FORDE_DATA, else the user's cache folder.

    >>> data_folder("my/data").as_posix()
    'my/data'
    """
    return Path(data_dir or os.environ.get("FORDE_DATA") or cache_folder()).expanduser()


def places(name: str, folder: Path, *, itself: bool = False) -> list[Path]:
    """The folders below `folder` that hold files of a data set, the preferred one first.

    With `itself` the folder may also be that of the set: only where the user has named the set, since files alone do
    not tell MNIST from Fashion-MNIST.

    >>> places("mnist", Path("nowhere"))
    []
    """
    files = "cinic10" if name == "cinic10-imagenet" else name
    below = [folder / place for place in _PLACES.get(files, ())]
    return [place for place in (*below, *([folder] if itself else ())) if _holds(files, place)]


def _holds(name: str, place: Path) -> bool:
    found = (path for sign in _SIGNS.get(name, ()) for path in place.glob(sign))
    return any(name in _FOLDER_SETS or path.is_file() for path in found)


def from_package(name: str) -> Path | None:
    """The folder that a package of the system has brought, if it is installed.

    >>> from_package("cifar10") is None
    True
    """
    _, place = PACKAGES.get(name, ("", None))
    return place if place is not None and _holds(name, place) else None


def find(name: str, folder: Path) -> Path:
    """The folder that holds a data set."""
    found = places(name, folder, itself=True)
    place = found[0] if found else from_package(name)
    if place is None:
        known = name.removesuffix("-imagenet")
        package = f" or: apt install {PACKAGES[name][0]} (Debian, Ubuntu)," if name in PACKAGES else ""
        raise FordeError(
            f"the data set '{name}' is not in '{folder}'; run: forde data download {known},{package} "
            "or name the folder that has it with --data-dir or FORDE_DATA."
        )
    return place
