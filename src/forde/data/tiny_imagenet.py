"""TinyImageNet-200 in its published folders. Its validation images serve as the test split: only they have labels.

Classes are numbered in sorted order of their WordNet ids, as TinyImageNet-C does, not in the order of wnids.txt.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from forde.data.checks import check_class_names
from forde.data.class_folders import list_files, read_bytes, read_files
from forde.data.description import Description, Images
from forde.errors import FordeError
from forde.reading.files import MAX_SHOWN


def read_tiny_imagenet(description: Description, folder: Path, split: str) -> Images:
    """A split of `train/<wnid>/images/*.JPEG` or of `val/images/*.JPEG` with `val/val_annotations.txt`."""
    classes = wordnet_ids(folder)
    if split == "train":
        files, labels = list_files(folder / "train", classes, "images")
    else:
        files, labels = _validation(folder / "val", classes)
    images = read_files(files, to_colour=True, shape=description.shape)
    sizes = {**description.splits, split: len(files)}
    described = replace(description, classes=classes, n_classes=len(classes), splits=sizes)
    return Images(images, labels, described, f"the published folders in '{folder}'")


def wordnet_ids(folder: Path) -> tuple[str, ...]:
    """The classes that wnids.txt names, sorted."""
    ids = read_bytes(folder / "wnids.txt").decode("utf-8", "replace").split()
    wrong = [name for name in ids if not name.isalnum()]
    if not ids or wrong:
        raise FordeError(f"'{folder / 'wnids.txt'}' does not list WordNet ids, one a line; get the data set again.")
    classes = tuple(sorted(set(ids)))
    check_class_names(classes, folder / "wnids.txt")
    return classes


def _validation(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], np.ndarray]:
    annotations = folder / "val_annotations.txt"
    number = {name: label for label, name in enumerate(classes)}
    files, labels = [], []
    seen: set[str] = set()
    for row, line in enumerate(read_bytes(annotations).decode("utf-8", "replace").splitlines(), start=1):
        cells = line.split("\t")
        if len(cells) < 2 or Path(cells[0]).name != cells[0]:
            raise FordeError(
                f"line {row} of '{annotations}' does not start with a file name and a class; get it again."
            )
        if cells[1] not in number:
            raise FordeError(
                f"line {row} of '{annotations}' names the class {cells[1][:MAX_SHOWN]!r}, which wnids.txt does not."
            )
        if cells[0] in seen:
            raise FordeError(f"line {row} of '{annotations}' names '{cells[0]}' for the second time; get it again.")
        seen.add(cells[0])
        files.append(folder / "images" / cells[0])
        labels.append(number[cells[1]])
    if not files:
        raise FordeError(f"'{annotations}' is empty; get the data set again.")
    return files, np.array(labels, np.int64)
