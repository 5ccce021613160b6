"""The published corrupted test sets: CIFAR-10-C, CIFAR-100-C and TinyImageNet-C."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from forde.data.catalogue import CATALOGUE
from forde.data.checks import checked_labels
from forde.data.class_folders import class_names, list_files, read_files
from forde.data.description import Images
from forde.data.locating import places
from forde.data.tiny_imagenet import wordnet_ids
from forde.errors import FordeError
from forde.reading.files import check_is_file

SEVERITIES = 5
PER_SEVERITY = 10_000
SOURCE = "published"


def read_published(name: str, corruption: str, severity: int, folder: Path) -> Images | None:
    """The published images of one corruption and severity, or None if they are not there."""
    if name in ("cifar10", "cifar100"):
        for place in places(f"{name}-c", folder):
            if (place / f"{corruption}.npy").exists():
                return _cifar(name, place, corruption, severity)
    if name == "tinyimagenet":
        for place in places("tinyimagenet-c", folder):
            if (place / corruption / str(severity)).is_dir():
                return _tiny_imagenet(place, corruption, severity, folder)
    return None


def open_array(path: Path) -> np.ndarray:
    """An array file, memory-mapped."""
    check_is_file(path)
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a broken file can raise anything, from EOFError to RecursionError
        raise FordeError(f"'{path}' is truncated or not a .npy file of numbers; delete it and get it again.") from error


def _cifar(name: str, folder: Path, corruption: str, severity: int) -> Images:
    path, labels_path = folder / f"{corruption}.npy", folder / "labels.npy"
    images, labels = open_array(path), open_array(labels_path)
    rows = SEVERITIES * PER_SEVERITY
    if images.shape != (rows, 32, 32, 3) or images.dtype != np.uint8:
        raise FordeError(
            f"'{path}' holds {images.dtype} of shape {images.shape}, but uint8 of shape ({rows}, 32, 32, 3) was "
            "expected; get it again."
        )
    if labels.shape != (rows,):
        raise FordeError(f"'{labels_path}' has shape {labels.shape}, but ({rows},) was expected; get it again.")
    chosen = slice((severity - 1) * PER_SEVERITY, severity * PER_SEVERITY)
    description = CATALOGUE[name]
    return Images(
        images[chosen], checked_labels(labels[chosen], description.n_classes, labels_path), description, SOURCE
    )


def _tiny_imagenet(place: Path, corruption: str, severity: int, folder: Path) -> Images:
    """Labels are the ranks of the sorted WordNet ids, in the published set as in forde's reader of the clean one."""
    images_folder = place / corruption / str(severity)
    description = CATALOGUE["tinyimagenet"]
    classes = _tiny_classes(place, images_folder, description.n_classes, folder)
    files, labels = list_files(images_folder, classes)
    images = read_files(files, to_colour=True, shape=description.shape)
    return Images(images, labels, replace(description, classes=classes, n_classes=len(classes)), SOURCE)


def _tiny_classes(place: Path, images_folder: Path, n_classes: int, folder: Path) -> tuple[str, ...]:
    """The 200 classes. The first publication has 1000 class folders in `frost`: those of other corruptions count."""
    own = class_names(images_folder)
    if len(own) <= n_classes:
        return own
    clean = places("tinyimagenet", folder)
    if clean:
        return wordnet_ids(clean[0])
    for other in sorted(place.glob("*/[1-5]")):
        names = class_names(other)
        if len(names) <= n_classes:
            return names
    raise FordeError(
        f"'{images_folder}' has {len(own)} class folders, but {n_classes} were expected (a known defect of the first "
        "publication); run: forde data download tinyimagenet-c."
    )
