"""Folders of class folders: any such set, CINIC-10, and the parts that TinyImageNet shares with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from forde.data.checks import channel_statistics, check_class_names, evenly_spaced, first_duplicate
from forde.data.description import Description, Images
from forde.errors import FordeError, unknown_name
from forde.hashing import content_key
from forde.reading.budget import check_fits
from forde.reading.decoding import SUFFIXES, decode_all, room_for, shape_of
from forde.reading.files import MAX_SHOWN, check_is_file

SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "valid": ("valid", "val", "validation"),
    "test": ("test", "testing"),
}
CIFAR_PREFIX = "cifar10-"
"""How CINIC-10 names the files that it took from CIFAR-10; the others are from ImageNet."""


def read_class_folder_set(folder: Path, split: str) -> Images:
    """A split of `folder/<class>/*.png` (which is all "train") or `folder/<split>/<class>/*.png`."""
    parts = split_folders(folder)
    if split not in parts:
        raise unknown_name(f"split of '{folder}'", split, parts)
    classes = class_names(parts["train"] if "train" in parts else parts[split])
    for part in parts.values():
        if unknown := set(class_names(part)) - set(classes):
            raise FordeError(
                f"the class folder '{part / min(unknown)}' has no counterpart in the training data; remove it."
            )
    listed = {part: list_files(parts[part], classes) for part in parts}
    files, labels = listed[split]
    training = listed.get("train", listed[split])[0]
    sample = [training[position] for position in evenly_spaced(len(training))]
    # A sample of its own is gone from memory before the split itself is read.
    statistics = None if sample == files else channel_statistics(read_files(sample, to_colour=False))
    images = read_files(files, to_colour=False, labels=labels)
    mean, std = statistics or channel_statistics(images)
    sizes = {part: len(part_files) for part, (part_files, _) in listed.items()}
    description = Description(
        folder.resolve().name, len(classes), images.shape[1:], mean, std, sizes, f"the folder '{folder}'", classes
    )
    return Images(images, labels, description, f"class folders in '{parts[split]}'")


def read_cinic(description: Description, folder: Path, split: str) -> Images:
    """A split of CINIC-10; of the name `cinic10-imagenet` only the images that are not from CIFAR-10."""
    files, labels = list_files(folder / split, description.classes)
    if description.name == "cinic10-imagenet":
        kept = [position for position, file in enumerate(files) if not file.name.startswith(CIFAR_PREFIX)]
        files, labels = [files[position] for position in kept], labels[kept]
        if not files:
            raise FordeError(f"'{folder / split}' holds no image from ImageNet; get the data set again.")
    images = read_files(files, to_colour=True, shape=description.shape)
    sizes = {**description.splits, split: len(files)}
    return Images(images, labels, replace(description, splits=sizes), f"class folders in '{folder / split}'")


def split_folders(folder: Path) -> dict[str, Path]:
    """Split → its folder; a folder that has no split folders is all training data.

    >>> list(split_folders(Path("pets")))
    ['train']
    """
    found = {
        split: folder / name for split, names in SPLIT_FOLDERS.items() for name in names if (folder / name).is_dir()
    }
    return found or {"train": folder}


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted."""
    if not folder.is_dir():
        raise FordeError(f"the folder '{folder}' is missing; check its name.")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise FordeError(f"the folder '{folder}' holds no class folders; put the images of each class into one.")
    check_class_names(names, folder)
    return tuple(names)


def list_files(folder: Path, classes: Sequence[str], below: str = "") -> tuple[list[Path], np.ndarray]:
    """The image files `folder/<class>/<below>/*`, class after class, and their labels `[N]`."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        place = folder / name / below
        if not place.is_dir():
            raise FordeError(f"the class folder '{place}' is missing; get the data set again or add the folder.")
        own = sorted(path for path in place.iterdir() if is_image(path))
        if not own:
            raise FordeError(f"the class folder '{place}' holds no images; add some or remove the class.")
        files += own
        labels += [label] * len(own)
    return files, np.array(labels, np.int64)


def is_image(path: Path) -> bool:
    """Whether a file is taken for an image, by its name.

    >>> is_image(Path("cat.JPEG")), is_image(Path(".DS_Store"))
    (True, False)
    """
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_files(
    files: Sequence[Path],
    *,
    to_colour: bool,
    shape: tuple[int, ...] | None = None,
    labels: np.ndarray | None = None,
) -> np.ndarray:
    """The images of files: uint8 `[N, H, W, C]`. With labels, the same content under two of them is refused."""
    digests = [b""] * len(files)

    def content(position: int) -> bytes:
        encoded = read_bytes(files[position])
        digests[position] = content_key(encoded)
        return encoded

    read: Callable[[int], bytes] = content if labels is not None else lambda position: read_bytes(files[position])
    names = [str(file) for file in files]
    first = names[0] if shape is None else None
    if shape is None:
        shape = shape_of(read(0), names[0], to_colour=to_colour)
    images = room_for(len(files), shape, f"{len(files):,} images of the size of '{names[0][-MAX_SHOWN:]}'", files)
    decode_all(names, read, to_colour=to_colour, out=images, first=first)
    twice = first_duplicate(digests, labels) if labels is not None else None
    if twice:
        raise FordeError(
            f"'{files[twice[1]]}' has the same content as '{files[twice[0]]}' of another class; remove one of them."
        )
    return images


def read_bytes(path: Path) -> bytes:
    """The content of a file that a listing named."""
    check_is_file(path)
    check_fits(path.stat().st_size, path, [path])
    return path.read_bytes()
