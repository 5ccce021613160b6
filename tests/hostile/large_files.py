"""Files of less than 1 MB that would fill the memory or never end, by name: what they are, and how they are read."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
from PIL import Image

MEGABYTE = 1_000_000
Call = tuple[object, ...]
"""A reader of `watching.py` and its arguments."""
Maker = Callable[[Path], Call]


def zeros(count: int, start: bytes = b"") -> bytes:
    """A deflated stream of `start` and so many zeros, a thousandth of that; whole megabytes are made once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    megabyte = block.compress(bytes(MEGABYTE)) + block.flush(zlib.Z_FULL_FLUSH)
    return begin + megabyte * (count // MEGABYTE) + packer.compress(bytes(count % MEGABYTE)) + packer.flush()


def checksum(count: int, start: bytes) -> int:
    value = zlib.crc32(start)
    for _ in range(count // MEGABYTE):
        value = zlib.crc32(bytes(MEGABYTE), value)
    return zlib.crc32(bytes(count % MEGABYTE), value)


def array_header(shape: tuple[int, ...], *, fortran: bool = False) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": fortran, "shape": shape})
    return out.getvalue()


def zipped(path: Path, members: dict[str, tuple[bytes, int]], *, true_sums: bool) -> Path:
    """A zip file of members that are some bytes and then zeros, which Python's own would take seconds for."""
    body, directory = b"", b""
    for name, (start, count) in members.items():
        packed = zeros(count, start)
        total = checksum(count, start) if true_sums or count < MEGABYTE else 0
        fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, total, len(packed), len(start) + count, len(name), 0)
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(body))
        directory += name.encode()
        body += b"PK\x03\x04" + fields + name.encode() + packed
    ending = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return files.write_file(path, body + directory + b"PK\x05\x06" + ending)


def npz(x: tuple[int, ...], y: tuple[int, ...], *, fortran: bool = False, true_sums: bool = False) -> Maker:
    def make(folder: Path) -> Call:
        header = array_header(x, fortran=fortran)
        members = {"x.npy": (header, int(np.prod(x))), "y.npy": (array_header(y), int(np.prod(y)))}
        return "load", zipped(folder / "set.npz", members, true_sums=true_sums)

    return make


def npz_header(folder: Path) -> Call:
    start = b"\x93NUMPY\x02\x00" + struct.pack("<I", 900 * MEGABYTE)
    members = {name: (start, 900 * MEGABYTE if name == "x.npy" else 0) for name in ("x.npy", "y.npy")}
    return "load", zipped(folder / "set.npz", members, true_sums=False)


def npz_members(folder: Path) -> Call:
    with zipfile.ZipFile(folder / "set.npz", "w") as archive:
        for number in range(9_000):
            archive.writestr(f"{number}.npy", b"")
    return "load", folder / "set.npz"


def idx(images: tuple[int, ...], labels: int) -> Maker:
    def make(folder: Path) -> Call:
        for name, shape in (("images-idx3", images), ("labels-idx1", (labels,))):
            start = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
            count = int(np.prod(shape))
            ending = struct.pack("<II", checksum(count, start), (len(start) + count) & 0xFFFFFFFF)
            gzip_header = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
            files.write_file(folder / f"train-{name}-ubyte.gz", gzip_header + zeros(count, start) + ending)
        return "load", "mnist", "train", folder

    return make


def png(width: int, height: int) -> bytes:
    """A colour image that is all black."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes((1 + 3 * width) * height), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(size: int, repeats: int = 0) -> bytes:
    """A progressive image; its last pass over the pixels is repeated."""
    out = io.BytesIO()
    Image.new("RGB", (size, size)).save(out, "JPEG", progressive=True, quality=10)
    content = out.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * repeats + content[-2:]


def folder_of(*images: bytes, copies: int = 1, suffix: str = "png") -> Maker:
    """Class folders with these images; a byte behind each tells copies apart."""

    def make(folder: Path) -> Call:
        for name in ("a", "b"):
            for number, image in enumerate(images * copies):
                files.write_file(folder / "pictures" / name / f"{number}.{suffix}", image + f"{name}{number}".encode())
        return "load", folder / "pictures"

    return make


def later(make: Callable[[], Maker]) -> Maker:
    """Make the content only when the test runs."""

    def make_now(folder: Path) -> Call:
        return make()(folder)

    return make_now


def bmp(size: int) -> bytes:
    """Rows of runs of zeros."""
    body = (bytes([255, 0]) * (size // 255) + bytes([size % 255, 0, 0, 0])) * size + b"\0\1"
    header = struct.pack("<IiiHHIIiiII", 40, size, size, 1, 8, 1, len(body), 0, 0, 0, 0) + bytes(1024)
    return b"BM" + struct.pack("<IHHI", 14 + len(header) + len(body), 0, 0, 14 + len(header)) + header + body


def webp(size: int) -> bytes:
    dimensions = struct.pack("<I", (size - 1) | (size - 1) << 14)
    body = b"WEBPVP8L" + struct.pack("<I", 1_000) + b"\x2f" + dimensions + bytes(995)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def parquet_images(image: Callable[[], bytes], rows: int, **options: Any) -> Maker:
    """One image, stored once, in so many rows."""

    def make(folder: Path) -> Call:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = pa.dictionary(pa.int32(), pa.binary())
        column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([image()], pa.binary()))
        table = pa.table({"image": column.cast(kind), "label": np.zeros(rows, np.int64)})
        pq.write_table(table, folder / "set.parquet", store_schema=False, dictionary_pagesize_limit=1 << 30, **options)
        return "load", folder / "set.parquet"

    return make


def parquet_prefixes(folder: Path) -> Call:
    """Each value is the one before and nothing more."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": pa.array([bytes(100_000)] * 1_000, pa.binary()), "label": np.zeros(1_000, np.int64)})
    options: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table, folder / "set.parquet", **options)
    return "load", folder / "set.parquet"


def parquet_table(rows: int, target: str = "") -> Maker:
    """Equal numbers, and a text or a number that is the same in all rows."""

    def make(folder: Path) -> Call:
        import pyarrow as pa
        import pyarrow.parquet as pq

        at_once = min(rows, MEGABYTE)
        last: Any = np.zeros(at_once, np.int8)
        if target:
            codes = pa.array(np.zeros(at_once, np.int32))
            last = pa.DictionaryArray.from_arrays(codes, pa.array([target]))
        table = pa.table({"x": np.zeros(at_once, np.int8), "y": last})
        schema = pa.schema([("x", pa.int8()), ("y", last.type if target else pa.int8())])
        options: dict[str, Any] = {"store_schema": False, "dictionary_pagesize_limit": 1 << 30}
        with pq.ParquetWriter(folder / "set.parquet", schema, **options) as writer:
            for _ in range(rows // at_once):
                writer.write_table(table)
        return "load", folder / "set.parquet"

    return make


def csv(lines: Callable[[], Sequence[str]]) -> Maker:
    return lambda folder: ("load", files.write_file(folder / "set.csv", "\n".join(lines()).encode() + b"\n"))


def batch(instructions: Callable[[], bytes]) -> Maker:
    """A CIFAR-10 batch."""

    def make(folder: Path) -> Call:
        files.write_cifar10_batches(folder, per_batch=1)
        files.write_file(folder / "data_batch_1", instructions())
        return "load", "cifar10", "train", folder

    return make


def tar_of_folders(folder: Path) -> Call:
    """One folder, made again and again."""
    info = tarfile.TarInfo("a")
    info.type = tarfile.DIRTYPE
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    many = block.compress(info.tobuf() * 2_000) + block.flush(zlib.Z_FULL_FLUSH)
    content = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + many * (900_000 // len(many))
    return "unpack", files.write_file(folder / "a.tar.gz", content), folder / "out"


def tar_of_files(folder: Path) -> Call:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for number in range(5_000):
            tar.addfile(tarfile.TarInfo(str(number)))
    return "unpack", files.write_file(folder / "a.tar.gz", out.getvalue()), folder / "out"


def zip_of_deep_folders(folder: Path) -> Call:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for number in range(250):
            archive.writestr(f"{number}/" + "a/" * 900, b"")
    return "unpack", folder / "a.zip", folder / "out"


def zip_of_zeros(folder: Path) -> Call:
    return "unpack", zipped(folder / "a.zip", {"a": (b"", 900 * MEGABYTE)}, true_sums=False), folder / "out"


def corrupted_array(folder: Path) -> Call:
    files.write_cifar10_batches(folder / "cifar10")
    header = array_header((50_000, 32, 32, 3))
    files.write_file(folder / "cifar10-c" / "fog.npy", header + bytes(900_000))
    files.write_file(folder / "cifar10-c" / "labels.npy", array_header((50_000,)) + bytes(50_000))
    return "corrupted", "cifar10", folder


def corrupted_folders(folder: Path) -> Call:
    image = png(6_000, 6_000)
    for number in range(10):
        files.write_file(folder / "tinyimagenet-c" / "fog" / "1" / "n01" / f"{number}.png", image)
    return "corrupted", "tinyimagenet", folder


def tiny_annotations(folder: Path) -> Call:
    """One image, named in a hundred thousand lines."""
    files.write_tiny_imagenet(folder)
    files.write_image(folder / "val" / "images" / "a", np.zeros((64, 64, 3), np.uint8))
    files.write_file(folder / "val" / "val_annotations.txt", b"a\tn01\n" * 100_000)
    return "load", "tinyimagenet", "test", folder


def tiny_classes(folder: Path) -> Call:
    files.write_tiny_imagenet(folder)
    files.write_file(folder / "wnids.txt", "\n".join(f"{number:x}" for number in range(160_000)).encode())
    return "load", "tinyimagenet", "test", folder


def small_image() -> bytes:
    return files.encoded(np.zeros((2, 2, 3), np.uint8))


REFUSED: dict[str, Maker] = {
    "npz: images of 900 MB": npz((900, 1_000, 1_000), (900,)),
    "npz: a table of 900 million bytes": npz((900_000, 1_000), (900_000,)),
    "npz: a table of 60 million columns": npz((1, 60_000_000), (1,)),
    "npz: labels of 900 million rows": npz((1, 2, 2), (900_000_000,)),
    "npz: a header of 900 MB": npz_header,
    "npz: thousands of arrays": npz_members,
    "idx: images of 900 MB": idx((900, 1_000, 1_000), 900),
    "idx: labels of 900 MB": idx((1, 2, 2), 900_000_000),
    "images: 50 PNG files of 147 MB": later(lambda: folder_of(png(7_000, 7_000), copies=25)),
    "images: a PNG file of 50 million pixels": later(lambda: folder_of(png(7_071, 7_071))),
    "images: a JPEG file of 5,000 passes": later(lambda: folder_of(jpeg(2_000, 5_000), suffix="jpg")),
    "images: a PPM file of remarks": later(lambda: folder_of(b"P3 400 400 255\n" + b"#\n" * 490_000, suffix="ppm")),
    "images: a WebP file of 268 million pixels": later(lambda: folder_of(webp(16_384), suffix="webp")),
    "parquet: an image of 12 MB in 1,000 rows": parquet_images(lambda: png(2_000, 2_000), 1_000),
    "parquet: an image of 12 bytes in 10 million rows": parquet_images(small_image, 10_000_000),
    "parquet: 500 kB that are no image in 20,000 rows": parquet_images(lambda: bytes(500_000), 20_000),
    "parquet: a value that begins as the one before": parquet_prefixes,
    "parquet: a table of 30 million rows": parquet_table(30_000_000),
    "parquet: a text of 100 kB in a million rows": parquet_table(MEGABYTE, "a" * 100_000),
    "csv: a row of 999,999 empty cells": csv(lambda: ["," * 499_000, "," * 499_000]),
    "csv: 120,000 columns": csv(lambda: [",".join(f"{n:x}" for n in range(120_000)), "1," * 119_999 + "1"]),
    "csv: 120,000 classes": csv(lambda: ["x,y", *(f"1,{n:x}" for n in range(120_000))]),
    "pickle: 900,000 sets": batch(lambda: b"\x80\x04(" + b"\x8f" * 900_000 + b"l."),
    "pickle: 300,000 numbers": batch(lambda: pickle.dumps({"data": list(range(300_000)), "labels": [0]})[:999_999]),
    "archive: 2 million times one folder": tar_of_folders,
    "archive: 900 MB of zeros": zip_of_zeros,
    "archive: 225,000 folders in the names of 250": zip_of_deep_folders,
    "corrupted: an array that claims 150 MB": corrupted_array,
    "corrupted: 10 PNG files of 108 MB": corrupted_folders,
    "tinyimagenet: one image in 100,000 lines": tiny_annotations,
    "tinyimagenet: 160,000 classes": tiny_classes,
}
READ: dict[str, Maker] = {
    "npz: images close to the limit": npz((430, 1_000, 1_000), (430,), true_sums=True),
    "npz: pixels in the order of Fortran": npz((150, 1_000, 1_000), (150,), fortran=True, true_sums=True),
    "npz: a tall table close to the limit": npz((8_400_000, 1), (8_400_000,), true_sums=True),
    "npz: a wide table close to the limit": npz((1, 1_550_000), (1,), true_sums=True),
    "idx: images close to the limit": idx((435, 1_000, 1_000), 435),
    "idx: as many labels as bytes of images": idx((17_000_000, 3, 4), 17_000_000),
    "images: JPEG files close to the limit": later(lambda: folder_of(jpeg(3_900), suffix="jpg")),
    "images: PNG files close to the limit": later(lambda: folder_of(png(3_900, 3_900))),
    "images: a BMP file of runs": later(lambda: folder_of(bmp(2_500), suffix="bmp")),
    "parquet: an image in 20,000 rows": parquet_images(small_image, 20_000),
    "parquet: a table close to the limit": parquet_table(5_000_000),
    "parquet: a text in a million rows": parquet_table(MEGABYTE, "a" * 900),
    "csv: 20,000 columns": csv(lambda: [",".join(f"g{n}" for n in range(20_000)), *["0.5," * 19_999 + "1"] * 4]),
    "csv: 240,000 rows": csv(lambda: ["x,y", *["1,2"] * 240_000]),
    "archive: 5,000 empty files": tar_of_files,
}
