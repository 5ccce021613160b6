"""Parquet files in the layout of the Hugging Face hub: encoded images and labels in columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forde.errors import FordeError, unknown_name

from .checks import check_is_file, check_same_length, checked_labels, count_classes
from .decoding import decode_all

_LABEL_NAMES = ("fine_label", "label", "labels")


class ImageColumns(NamedTuple):
    """Where a parquet file keeps images and labels."""

    image: str
    """The column itself, or `column.bytes` of a column of records."""
    label: str
    classes: tuple[str, ...]
    """Names that the file states, else empty."""


def split_files(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split in order: `train-00000-of-00002.parquet`, ..., also below `data/`."""
    return sorted(folder.glob(f"{split}*.parquet")) or sorted((folder / "data").glob(f"{split}*.parquet"))


def image_columns(path: Path, label: str | None = None) -> ImageColumns | None:
    """The columns with images and labels, or None if the file has no column of bytes: then it is a feature table."""
    schema = _open(path).schema_arrow
    image = next((name for field in schema if (name := _bytes_of(field))), None)
    if image is None:
        return None
    wanted = (label,) if label else _LABEL_NAMES
    found = next((name for name in wanted if name in schema.names), None)
    if found is None:
        raise _no_column(path, wanted[0] if label else "label", schema.names)
    return ImageColumns(image, found, _class_names(schema.metadata or {}, found))


def read_parquet_images(
    files: list[Path],
    columns: ImageColumns,
    n_classes: int | None,
    *,
    to_colour: bool,
    shape: tuple[int, ...] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[N, H, W, C]` and labels `[N]` of all files; without n_classes labels need only be ≥ 0."""
    images, labels = [], []
    for path in files:
        encoded, numbers = _columns(path, columns)
        check_same_length(len(encoded), len(numbers), path)
        top = n_classes if n_classes is not None else count_classes([numbers], path)
        labels.append(checked_labels(numbers, top, path))
        names = [f"{path}, row {row}" for row in range(len(encoded))]
        images.append(decode_all(names, encoded.__getitem__, to_colour=to_colour, shape=shape))
        shape = images[0].shape[1:]
    return (images[0], labels[0]) if len(files) == 1 else (np.concatenate(images), np.concatenate(labels))


def count_rows(files: list[Path]) -> int:
    """The rows of all files, without reading them."""
    return sum(_open(path).metadata.num_rows for path in files)


def _columns(path: Path, columns: ImageColumns) -> tuple[list[bytes], np.ndarray]:
    import pyarrow as pa

    try:
        table = _open(path).read(columns=[columns.image, columns.label])
        images = table.column(0).combine_chunks()
        if pa.types.is_struct(images.type):
            images = images.field(0)
        labels = table.column(1)
    except Exception as error:  # a broken file can raise anything, from ArrowException to UnicodeDecodeError
        raise FordeError(f"'{path}' is truncated or damaged; get the file again.") from error
    if images.null_count or labels.null_count:
        raise FordeError(f"'{path}' has rows without an image or a label; remove them.")
    return images.to_pylist(), labels.to_numpy()


def _open(path: Path) -> Any:
    import pyarrow.parquet as pq

    check_is_file(path)
    try:
        return pq.ParquetFile(path)
    except Exception as error:  # see _columns
        raise FordeError(f"'{path}' is truncated or not a Parquet file; get it again.") from error


def _bytes_of(field: Any) -> str | None:
    """The name of the bytes in a column that holds encoded images."""
    import pyarrow as pa

    if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
        return str(field.name)
    if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
        return f"{field.name}.bytes"
    return None


def _class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    """The hub writes class names into the file's metadata, as JSON."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _no_column(path: Path, wanted: str, names: list[str]) -> FordeError:
    return FordeError(f"in '{path}': {unknown_name('column', wanted, names)}")
