"""From encoded images (JPEG, PNG, ...) to one uint8 array."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forde.errors import FordeError
from forde.reading.budget import check_fits

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
"""What is opened at all; others (EPS, PDF, ...) would start further programs."""
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm"}
MAX_PIXELS = 50_000_000
"""A larger image is refused before it is unpacked."""
MAX_SCANS = 100
"""Passes over a JPEG file, of which ten are usual: each of them is a few bytes and goes through all pixels."""
MAX_REMARKS = 1_000
"""In a PPM file of plain text; Pillow copies what is left for each of them."""
PIECE = 256
"""Images per task of the pool."""
WORKING_BYTES = 20
"""That a pixel takes while it is unpacked: coefficients of a JPEG file, Pillow's four channels, and a copy."""
MAX_WORKING_BYTES = 100_000_000
"""For all images that are unpacked at once, unless one alone needs more."""
_T = TypeVar("_T")
_GREY = {"1", "L", "LA"}
_COLOUR = {"RGB", "RGBA", "P", "CMYK", "YCbCr"}


def decode(
    encoded: bytes, name: str, *, to_colour: bool, shape: tuple[int, ...] | None = None, first: str | None = None
) -> np.ndarray:
    """One image: uint8 `[H, W, 3]`, or `[H, W, 1]` if it is grey and `to_colour` is off. `name` is for errors.

    One that has not the shape given is refused before it is unpacked; `first` names the image that has it, if one has.

    >>> pgm = b"P5 2 1 255 " + bytes([7, 9])
    >>> decode(pgm, "a.pgm", to_colour=True).tolist()
    [[[7, 7, 7], [9, 9, 9]]]
    """

    def unpack(image: Any) -> np.ndarray:
        found = _shape(image, name, to_colour=to_colour)
        if shape is not None and found != shape:
            raise _other_shape(name, found, shape, first)
        if _is_laborious(encoded):
            raise FordeError(f"the image '{name}' would take far too long to unpack; save it again.")
        wanted = "RGB" if found[2] == 3 else "L"
        return np.asarray(image if image.mode == wanted else image.convert(wanted)).reshape(found)

    return _opened(encoded, name, unpack)


def shape_of(encoded: bytes, name: str, *, to_colour: bool) -> tuple[int, ...]:
    """The shape that `decode` will give, from the header alone.

    >>> shape_of(b"P5 2 1 255 ", "a.pgm", to_colour=True)
    (1, 2, 3)
    """
    return _opened(encoded, name, lambda image: _shape(image, name, to_colour=to_colour))


def _opened(encoded: bytes, name: str, use: Callable[[Any], _T]) -> _T:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            return use(image)
    except FordeError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise FordeError(f"the image '{name}' has too many pixels; resize it to {MAX_PIXELS:,} at most.") from error
    except Exception as error:  # a broken file can raise anything, from struct.error to SyntaxError
        raise FordeError(f"the image '{name}' cannot be read; get it again or remove it.") from error


def _is_laborious(encoded: bytes) -> bool:
    """Whether a file is written to keep its reader busy: JPEG with many passes, plain text with many remarks."""
    if encoded.startswith(b"\xff\xd8"):
        return encoded.count(b"\xff\xda") > MAX_SCANS
    return encoded.startswith((b"P1", b"P2", b"P3")) and encoded.count(b"#") > MAX_REMARKS


def _shape(image: Any, name: str, *, to_colour: bool) -> tuple[int, ...]:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise FordeError(f"the image '{name}' has {width} x {height} pixels; resize it to {MAX_PIXELS:,} at most.")
    if image.mode not in _GREY | _COLOUR:
        raise FordeError(
            f"the image '{name}' has pixels of type {image.mode}, but 8 bits per channel were expected; convert it."
        )
    return height, width, 3 if to_colour or image.mode in _COLOUR else 1


def decode_all(
    names: Sequence[str],
    read: Callable[[int], bytes],
    *,
    to_colour: bool,
    out: np.ndarray,
    first: str | None = None,
) -> None:
    """Unpack images into `out` `[N, H, W, C]`; `read(i)` gives the bytes of image i, which errors call `names[i]`.

    `first` names the image that `out` has its shape from, if one has.

    With `to_colour` grey ones are made colour, without it they may not be mixed with colour ones.

    >>> out = room_for(1, (1, 2, 1), "a.pgm", [])
    >>> decode_all(["a.pgm"], lambda i: b"P5 2 1 255 " + bytes([7, 9]), to_colour=False, out=out)
    >>> out.tolist()
    [[[[7], [9]]]]
    """
    shape = out.shape[1:]
    workers = _workers(shape)
    piece = max(1, min(PIECE, len(names) // workers))

    def fill(start: int) -> None:
        for position in range(start, min(start + piece, len(names))):
            out[position] = decode(read(position), names[position], to_colour=to_colour, shape=shape, first=first)

    # Pillow lets go of the interpreter's lock while it decodes, and reading files waits for the disk.
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(fill, range(0, len(names), piece)):
            pass


def room_for(count: int, shape: tuple[int, ...], what: str | Path, files: Iterable[Path]) -> np.ndarray:
    """An array for that many images of a shape `(H, W, C)`; more than fit into memory are refused.

    Errors call the images `what`, and `files` are those that hold them.

    >>> room_for(10, (32, 32, 3), "pets", []).shape
    (10, 32, 32, 3)
    """
    check_fits(count * math.prod(shape) + _workers(shape) * _working(shape), what, files)
    return np.empty((count, *shape), np.uint8)


def _workers(shape: tuple[int, ...]) -> int:
    return max(1, min(8, os.cpu_count() or 1, MAX_WORKING_BYTES // max(1, _working(shape))))


def _working(shape: tuple[int, ...]) -> int:
    return WORKING_BYTES * shape[0] * shape[1]


def _other_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...], first: str | None) -> FordeError:
    """Where one image differs from the first, either may be the one that is not as it should be."""
    if found[:2] == wanted[:2]:
        kinds = {1: "grey", 3: "colour"}
        others = f"{kinds[wanted[2]]} images were expected" if first is None else f"'{first}' is {kinds[wanted[2]]}"
        return FordeError(f"the image '{name}' is {kinds[found[2]]}, but {others}; convert them to one kind.")
    size = f"{wanted[0]} x {wanted[1]}"
    others = f"{size} were expected" if first is None else f"'{first}' has {size}"
    return FordeError(
        f"the image '{name}' has {found[0]} x {found[1]} pixels, but {others}; resize all images to one size."
    )
