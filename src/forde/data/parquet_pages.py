"""What the columns of a Parquet file unpack to, from the headers of its pages.

The file's own summary is not enough: Arrow does not compare it with the pages, and values that are stored once and
repeated by their number are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

_DICTIONARY_PAGE, _PREFIXES = 2, 7
"""A type of pages, and the encoding in which a value is a prefix of the one before and what follows."""
_HEADER = 4_096
_MAX_HEADER = 1 << 20
_LEAST_PAGE = 8
"""Bytes of a page, header and all."""
_DATA_HEADERS = {5: 2, 8: 4}
"""Fields with the header of a page of values, of either version, and the field with the encoding in each."""


class Unpacked(NamedTuple):
    """What some columns of a file take."""

    rows: int
    stored: int
    """Bytes of all pages of the largest group of rows."""
    repeated: int
    """The most bytes that a value stored once can have; each row may hold it."""


def unpacked(path: Path, metadata: Any, columns: Sequence[int]) -> Unpacked:
    """Sizes of the columns with these numbers; a file that is damaged raises ValueError, IndexError or OSError."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    largest = repeated = seen = 0
    with path.open("rb") as file:
        for group in groups:
            pages = [list(_pages(file, group.column(number))) for number in columns]
            seen += sum(map(len, pages))
            if seen * _LEAST_PAGE > path.stat().st_size:
                raise ValueError("columns that share their pages, which could be any number")
            largest = max(largest, sum(page.size for own in pages for page in own))
            repeated = max(repeated, *(sum(page.size for page in own if page.repeats) for own in pages))
    return Unpacked(max(metadata.num_rows, sum(group.num_rows for group in groups)), largest, repeated)


class _Page(NamedTuple):
    size: int
    repeats: bool


def _pages(file: IO[bytes], chunk: Any) -> Iterator[_Page]:
    """The pages of a column, found as Arrow finds them."""
    place, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < place:
        place = dictionary
    end = place + chunk.total_compressed_size
    while place < end:
        fields, length = _header(file, place)
        size, compressed = fields[2], fields[3]
        if size < 0 or compressed < 0:
            raise ValueError("a page of negative size")
        encodings = {fields[header].get(field) for header, field in _DATA_HEADERS.items() if header in fields}
        yield _Page(size, fields[1] == _DICTIONARY_PAGE or _PREFIXES in encodings)
        place += length + compressed


def _header(file: IO[bytes], place: int) -> tuple[dict[int, Any], int]:
    """The fields of the header at a place of the file, and its length."""
    size = _HEADER
    while True:
        file.seek(place)
        content = file.read(size)
        try:
            return _struct(content, 0)
        except IndexError:
            if len(content) < size or size >= _MAX_HEADER:
                raise
        size *= 16


def _struct(content: bytes, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A record in Thrift's compact protocol: field number → value, and the place behind it."""
    fields: dict[int, Any] = {}
    number = 0
    while code := content[place]:
        place += 1
        if code >> 4:
            number += code >> 4
        else:
            number, place = _integer(content, place)
        fields[number], place = _value(content, place, code & 15, depth)
    return fields, place + 1


def _value(content: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # truth values are in the kind itself
        return kind == 1, place
    if kind == 3:
        return content[place], place + 1
    if kind in (4, 5, 6):
        return _integer(content, place)
    if kind == 7:
        return None, place + 8
    if kind == 8:
        length, place = _count(content, place)
        return None, place + length
    if kind in (9, 10) and depth < 8:
        return None, _after_list(content, place, depth)
    if kind == 12 and depth < 8:
        return _struct(content, place, depth + 1)
    raise ValueError("not a header of a page")


def _after_list(content: bytes, place: int, depth: int) -> int:
    length, kind = content[place] >> 4, content[place] & 15
    place += 1
    if length == 15:
        length, place = _count(content, place)
    for _ in range(length):
        _, place = (None, place + 1) if kind in (1, 2) else _value(content, place, kind, depth + 1)
    return place


def _count(content: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than 64 bits")


def _integer(content: bytes, place: int) -> tuple[int, int]:
    """A whole number with its sign in the lowest bit."""
    value, place = _count(content, place)
    return (value >> 1) ^ -(value & 1), place
