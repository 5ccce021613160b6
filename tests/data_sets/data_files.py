"""Small files in every published layout, for the tests to write, read and break."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """uint8 `[count, *shape]`."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """One image `[H, W, 3]`, or grey `[H, W]` or `[H, W, 1]`, as a PNG or JPEG file."""
    out = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(out, kind)
    return out.getvalue()


def write_file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_image(path: Path, pixels: np.ndarray, kind: str = "PNG") -> Path:
    return write_file(path, encoded(pixels, kind))


def python_2_pickle(entries: dict[bytes, Any]) -> bytes:
    """A pickle as Python 2 wrote the published batches: byte strings as `str`, which Python 3 cannot write.

    Python 3 writes bytes for protocol 2 as a call of `_codecs.encode`; the published files hold them plainly.
    """
    out = io.BytesIO()
    out.write(b"\x80\x02}(")
    for key, value in entries.items():
        out.write(_string(key))
        if isinstance(value, np.ndarray):
            out.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + _string(b"b") + b"tR")
            out.write(b"(K\x01(" + b"".join(_number(n) for n in value.shape) + b"t")
            out.write(b"cnumpy\ndtype\n(" + _string(b"u1") + b"K\x00K\x01tR(K\x03" + _string(b"|") + b"NNN")
            out.write(b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89" + _string(value.tobytes()) + b"tb")
        else:
            out.write(b"](" + b"".join(_number(n) for n in value) + b"e")
    out.write(b"u.")
    return out.getvalue()


def _string(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def write_cifar10_batches(folder: Path, per_batch: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """The five training batches and the test batch; returns the training images `[N, 32, 32, 3]` and labels."""
    images, labels = noise(5 * per_batch, (32, 32, 3)), np.arange(5 * per_batch) % 10
    for number in range(5):
        rows = slice(number * per_batch, (number + 1) * per_batch)
        write_file(folder / f"data_batch_{number + 1}", cifar_batch(images[rows], labels[rows]))
    write_file(folder / "test_batch", cifar_batch(noise(3, (32, 32, 3), 1), [7, 8, 9]))
    return images, labels


def cifar_batch(images: np.ndarray, labels: Sequence[int], key: bytes = b"labels") -> bytes:
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    return python_2_pickle({b"data": rows, key: [int(label) for label in labels]})


def write_parquet(path: Path, files: Sequence[bytes], column: str = "img", **columns: Sequence[int]) -> Path:
    """Encoded images as records with bytes and a path, beside columns of labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"bytes": content, "path": f"{row}.png"} for row, content in enumerate(files)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({column: pa.array(records, kind), **columns}), path)
    return path


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx_set(folder: Path, *, compressed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Both splits of an MNIST-like set; returns the training images `[N, 28, 28]` and labels."""
    images, labels = noise(12, (28, 28)), (np.arange(12) % 10).astype(np.uint8)
    for stem, rows in (("train", slice(None)), ("t10k", slice(5))):
        for name, array in ((f"{stem}-images-idx3-ubyte", images[rows]), (f"{stem}-labels-idx1-ubyte", labels[rows])):
            content = idx(array)
            write_file(
                folder / (f"{name}.gz" if compressed else name), gzip.compress(content) if compressed else content
            )
    return images, labels


def write_class_folders(folder: Path, classes: Sequence[str], per_class: int = 2, seed: int = 0) -> np.ndarray:
    """`folder/<class>/<n>.png`, 8×8 colour; returns the images in the order of sorted classes and files."""
    images = noise(len(classes) * per_class, (8, 8, 3), seed)
    for position, name in enumerate(sorted(classes)):
        for number in range(per_class):
            write_image(folder / name / f"{number}.png", images[position * per_class + number])
    return images


WORDNET = ("n03", "n01", "n02")


def write_tiny_imagenet(folder: Path) -> None:
    """Three classes of TinyImageNet in the published layout; wnids.txt is not sorted, as the published one."""
    write_file(folder / "wnids.txt", "\n".join(WORDNET).encode())
    for label, name in enumerate(WORDNET):
        for number in range(2):
            path = folder / "train" / name / "images" / f"{name}_{number}.JPEG"
            write_image(path, np.full((64, 64, 3), 60 * label + 10 * number, np.uint8), "JPEG")
    lines = []
    for number, name in enumerate(WORDNET):
        write_image(folder / "val" / "images" / f"val_{number}.JPEG", np.full((64, 64, 3), number, np.uint8), "JPEG")
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62")
    write_file(folder / "val" / "val_annotations.txt", "\n".join(lines).encode())


class Malicious:
    """Pickles to a call of a function of the reader's choice, as an attacker would write it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def malicious_pickle(function: Any, *arguments: Any) -> bytes:
    return pickle.dumps({"data": Malicious(function, *arguments)}, protocol=2)
