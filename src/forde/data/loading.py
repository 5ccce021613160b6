"""`load`: one door to every data set and layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from forde.data.arrays import read_npz
from forde.data.built_in import read_built_in
from forde.data.catalogue import BUILT_IN, CATALOGUE
from forde.data.checks import channel_statistics, count_classes
from forde.data.cifar import read_cifar_batches
from forde.data.class_folders import read_cinic, read_class_folder_set
from forde.data.description import Description, Images, Table
from forde.data.idx import read_idx_set
from forde.data.locating import Folder, data_folder, find
from forde.data.parquet import count_rows, image_columns, read_parquet_images, split_files
from forde.data.tables import SUFFIXES, Task, read_table, table_files
from forde.data.tiny_imagenet import read_tiny_imagenet
from forde.errors import FordeError, unknown_name

_ALIASES = {"val": "valid", "validation": "valid"}


def load(
    name_or_path: str | os.PathLike[str],
    split: str = "train",
    data_dir: Folder | None = None,
    *,
    target: str | int | None = None,
    task: Task | None = None,
    encode: bool = False,
    drop: Sequence[str] = (),
) -> Images | Table:
    """One split of a data set.

    Args:
        name_or_path: A name of the catalogue, or a path: a folder of class folders, a `.npz` file, a CSV or Parquet
            file, or a folder of Parquet or CSV files named after splits.
        split: "train", "test", and "valid" where there is one.
        data_dir: The folder with data sets known by name; else FORDE_DATA, else the user's cache folder.
        target: The target column of a table, by name or by number (from 0; −1 is the last, which is the default).
        task: "classification" or "regression" for a table whose target could be either.
        encode: Make text and gaps of a table numbers, as `forde train` does; else they are an error.
        drop: Columns of a table that are no features.

    >>> digits = load("digits", "test")
    >>> digits.images.shape, digits.labels.dtype
    ((899, 8, 8, 1), dtype('int64'))
    """
    name = os.fspath(name_or_path)
    split = _ALIASES.get(split, split)
    if task is not None and task not in get_args(Task):
        raise unknown_name("task", task, get_args(Task))
    asked = _Columns(target, task, encode, tuple(drop))
    if name in CATALOGUE:
        _refuse_column_options(name, asked)
        return _load_named(CATALOGUE[name], split, data_dir)
    path = Path(name).expanduser()
    if path.exists() or path.suffix.lower() in (".npz", *SUFFIXES) or len(path.parts) > 1:
        return _load_path(path, split, asked)
    raise unknown_name("data set, file or folder", name, CATALOGUE)


def load_images(name_or_path: str | os.PathLike[str], split: str = "train", data_dir: Folder | None = None) -> Images:
    """As `load`, for what needs images.

    >>> load_images("digits").description.shape
    (8, 8, 1)
    """
    data = load(name_or_path, split, data_dir)
    if not isinstance(data, Images):
        raise FordeError(f"'{name_or_path}' is a table, but images were expected; name a data set of images.")
    return data


def _load_named(description: Description, split: str, data_dir: Folder | None) -> Images | Table:
    name = description.name
    if name == "tinyimagenet" and split == "valid":
        split = "test"  # its validation images are its only labelled test images
    if split not in description.splits:
        raise unknown_name(f"split of {name}", split, description.splits)
    if name in BUILT_IN:
        return read_built_in(description, split)
    folder = find(name, data_folder(data_dir))
    if name == "tinyimagenet":
        return read_tiny_imagenet(description, folder, split)
    if name in ("cinic10", "cinic10-imagenet"):
        return read_cinic(description, folder, split)
    if name in ("cifar10", "cifar100"):
        return _load_cifar(description, folder, split)
    images, labels = read_idx_set(folder, split)
    return _described(Images(images, labels, description, f"idx files in '{folder}'"), split)


def _load_cifar(description: Description, folder: Path, split: str) -> Images:
    if not any(folder.glob("*.parquet")):
        images, labels = read_cifar_batches(description.name, folder, split)
        return _described(Images(images, labels, description, f"the published batches in '{folder}'"), split)
    files = split_files(folder, split)
    if not files:
        raise FordeError(f"the file '{folder / split}*.parquet' is missing; get the data set again.")
    columns = image_columns(files[0], "fine_label" if description.name == "cifar100" else None)
    if columns is None:
        raise FordeError(f"'{files[0]}' has no column of encoded images; get the file again.")
    images, labels = read_parquet_images(files, columns, description.n_classes, to_colour=True, shape=description.shape)
    return _described(Images(images, labels, description, f"Parquet files in '{folder}'"), split)


class _Columns(NamedTuple):
    """What was asked of a table."""

    target: str | int | None
    task: Task | None
    encode: bool
    drop: tuple[str, ...]


def _load_path(path: Path, split: str, asked: _Columns) -> Images | Table:
    if not path.exists():
        raise FordeError(f"'{path}' does not exist; check the path.")
    if path.suffix.lower() == ".npz":
        _refuse_column_options(path, asked)
        return read_npz(path, split)
    if path.is_file() and path.suffix.lower() not in SUFFIXES:
        raise FordeError(f"'{path}' is not of a known kind; give a folder or a file ending in .npz, .csv or .parquet.")
    if path.is_file() or table_files(path):
        return _load_columns(path, split, asked)
    if split_files(path, "train"):
        return _load_parquet_images(path, split, _label(path, asked))
    _refuse_column_options(path, asked)
    return read_class_folder_set(path, split)


def _load_columns(path: Path, split: str, asked: _Columns) -> Images | Table:
    first, target = next(iter(table_files(path).values())), asked.target
    if first.suffix.lower() == ".parquet" and image_columns(first, target if isinstance(target, str) else None):
        return _load_parquet_images(path, split, _label(path, asked))
    return read_table(path, split, target, asked.task, encode=asked.encode, drop=asked.drop)


def _label(path: Path, asked: _Columns) -> str | None:
    """The column of labels of encoded images, which are always classes."""
    if isinstance(asked.target, int) or asked.task == "regression":
        raise FordeError(f"'{path}' holds images; give the name of their column of classes as target, or leave it out.")
    return asked.target


def _refuse_column_options(name: str | Path, asked: _Columns) -> None:
    if asked.target is not None or asked.task is not None or asked.drop:
        option = "target" if asked.target is not None else "task" if asked.task is not None else "drop"
        raise FordeError(
            f"{option} chooses among columns of a CSV or Parquet file, but '{name}' is another kind of data set; "
            f"leave {option} out."
        )


def _load_parquet_images(path: Path, split: str, label: str | None) -> Images:
    parts = (
        {"train": [path]} if path.is_file() else {part: split_files(path, part) for part in ("train", "val", "test")}
    )
    files = {_ALIASES.get(part, part): found for part, found in parts.items() if found}
    if split not in files:
        raise unknown_name(f"split of '{path}'", split, files)
    training = "train" if "train" in files else split
    columns = image_columns(files[training][0], label)
    if columns is None:
        raise FordeError(f"'{files[training][0]}' has no column of encoded images; check the file.")
    declared = len(columns.classes) or None
    statistics, all_labels = None, []
    if split != training:  # these are gone from memory before the split itself is read
        others, labels = read_parquet_images(files[training], columns, declared, to_colour=False)
        statistics = channel_statistics(others)
        all_labels.append(labels)
        del others
    images, labels = read_parquet_images(files[split], columns, declared, to_colour=False)
    mean, std = statistics or channel_statistics(images)
    n_classes = declared or count_classes([*all_labels, labels], path)
    names = columns.classes or tuple(map(str, range(n_classes)))
    sizes = {part: count_rows(found) for part, found in files.items()}
    source = f"Parquet files in '{path}'"
    described = Description(path.stem, n_classes, images.shape[1:], mean, std, sizes, source, names)
    return Images(images, labels, described, source)


def _described(data: Images, split: str) -> Images:
    """With the number of images that was really found."""
    sizes = {**data.description.splits, split: len(data)}
    return replace(data, description=replace(data.description, splits=sizes))
