"""Parquet files in the layout of the Hugging Face hub: encoded images and labels in columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forde.data.checks import check_class_names, check_same_length, checked_labels, count_classes
from forde.data.parquet_pages import Unpacked, unpacked
from forde.errors import FordeError, unknown_name
from forde.reading.budget import check_fits
from forde.reading.decoding import decode_all, room_for, shape_of
from forde.reading.files import check_is_file

MOST_ROWS = 4_096
"""Rows that are unpacked at once."""
MAX_REPEATED = 100_000_000
"""Bytes that a value stored once may take in so many rows, unless a single one needs more."""
LET_OFF = 20_000
LEAST_IMAGE = 32
"""Bytes of an encoded image; a file with so many more images than these fit repeats a few of them without end."""
_LABEL_BYTES = 30
"""Of a row: its label as int64 twice, and masks of what is missing or out of range."""
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
    import pyarrow as pa

    schema = open_parquet(path).schema_arrow
    image = next((name for field in schema if (name := _bytes_of(field))), None)
    if image is None:
        return None
    wanted = (label,) if label else _LABEL_NAMES
    found = next((name for name in wanted if name in schema.names), None)
    if found is None:
        raise _no_column(path, wanted[0] if label else "label", schema.names)
    if not pa.types.is_integer(kind := schema.field(found).type):
        raise FordeError(f"the labels in '{path}' are {str(kind)[:60]}, but whole numbers were expected; convert them.")
    classes = _class_names(schema.metadata or {}, found)
    check_class_names(classes, path)
    return ImageColumns(image, found, classes)


def read_parquet_images(
    files: list[Path],
    columns: ImageColumns,
    n_classes: int | None,
    *,
    to_colour: bool,
    shape: tuple[int, ...] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[N, H, W, C]` and labels `[N]` of all files; without n_classes labels need only be ≥ 0."""
    total = count_rows(files)
    stored = sum(path.stat().st_size for path in files)
    if total > LET_OFF + stored // LEAST_IMAGE:
        raise FordeError(
            f"'{files[0].parent}' holds {total:,} images in {stored:,} bytes, so most are copies; write each once."
        )
    images = np.empty(0, np.uint8)
    labels: list[np.ndarray] = []
    done = 0
    for path in files:
        numbers = []
        before = done
        for encoded, own in _rows(path, columns):
            names = [f"{path}, row {done - before + row}" for row in range(len(encoded))]
            if not done:
                shape = shape or shape_of(encoded[0], names[0], to_colour=to_colour)
                what = f"{total:,} images of the size of '{names[0]}'"
                images = room_for(total, shape, what, files)
            if done + len(encoded) > total:
                raise _damaged(path)
            decode_all(names, encoded.__getitem__, to_colour=to_colour, out=images[done : done + len(encoded)])
            numbers.append(own)
            done += len(encoded)
        check_same_length(done - before, sum(map(len, numbers)), path)
        found = np.concatenate(numbers)
        top = n_classes if n_classes is not None else count_classes([found], path)
        labels.append(checked_labels(found, top, path))
    if done != total:
        raise _damaged(files[-1])
    return images, np.concatenate(labels)


def count_rows(files: list[Path]) -> int:
    """The rows of all files, without reading them."""
    return sum(open_parquet(path).metadata.num_rows for path in files)


def open_parquet(path: Path) -> Any:
    """A Parquet file whose summary can be read."""
    import pyarrow.parquet as pq

    check_is_file(path)
    try:
        return pq.ParquetFile(path)
    except Exception as error:  # a broken file can raise anything, from ArrowException to UnicodeDecodeError
        raise FordeError(f"'{path}' is truncated or not a Parquet file; get it again.") from error


def column_sizes(path: Path, file: Any, columns: list[str]) -> Unpacked:
    """What these columns take; a name stands also for the parts of a column of records."""
    schema = file.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    chosen = set(columns)
    wanted = [number for number, own in enumerate(paths) if own in chosen or own.partition(".")[0] in chosen]
    try:
        return unpacked(path, file.metadata, wanted)
    except Exception as error:  # as above
        raise _damaged(path) from error


def column_batches(path: Path, columns: list[str], row_bytes: int) -> Iterator[Any]:
    """The columns a part of the rows at a time; `row_bytes` is what the caller keeps of each row."""
    file = open_parquet(path)
    size = column_sizes(path, file, columns)
    at_once = max(1, min(MOST_ROWS, MAX_REPEATED // max(size.repeated, 1)))
    # The pages and the rows made from them, which may hold a repeated value each; both once as Python's own.
    check_fits(size.rows * row_bytes + 2 * (size.stored + at_once * size.repeated), path, [path])
    try:
        yield from file.iter_batches(at_once, columns=columns, use_threads=False)
    except Exception as error:  # as above
        raise _damaged(path) from error


def _rows(path: Path, columns: ImageColumns) -> Iterator[tuple[list[bytes], np.ndarray]]:
    """Encoded images and labels, a part of the rows at a time."""
    import pyarrow as pa

    for batch in column_batches(path, [columns.image, columns.label], _LABEL_BYTES):
        images, labels = batch.column(columns.image.removesuffix(".bytes")), batch.column(columns.label)
        if pa.types.is_struct(images.type):
            images = images.field(0)
        if images.null_count or labels.null_count:
            raise FordeError(f"'{path}' has rows without an image or a label; remove them.")
        yield images.to_pylist(), labels.to_numpy()


def _damaged(path: Path) -> FordeError:
    return FordeError(f"'{path}' is truncated or damaged; get the file again.")


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
