"""From encoded images (JPEG, PNG, ...) to one uint8 array."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from forde.errors import FordeError

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
"""What is opened at all; others (EPS, PDF, ...) would start further programs."""
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm"}
MAX_PIXELS = 50_000_000
"""A larger image is refused before it is unpacked."""
PIECE = 256
"""Images per task of the pool."""
_GREY = {"1", "L", "LA"}
_COLOUR = {"RGB", "RGBA", "P", "CMYK", "YCbCr"}


def decode(encoded: bytes, name: str, *, to_colour: bool) -> np.ndarray:
    """One image: uint8 `[H, W, 3]`, or `[H, W, 1]` if it is grey and `to_colour` is off. `name` is for errors.

    >>> pgm = b"P5 2 1 255 " + bytes([7, 9])
    >>> decode(pgm, "a.pgm", to_colour=True).tolist()
    [[[7, 7, 7], [9, 9, 9]]]
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise FordeError(
                    f"the image '{name}' has {width} x {height} pixels; resize it to {MAX_PIXELS} at most."
                )
            if image.mode not in _GREY | _COLOUR:
                raise FordeError(
                    f"the image '{name}' has pixels of type {image.mode}, but 8 bits per channel were "
                    "expected; convert it."
                )
            wanted = "RGB" if to_colour or image.mode in _COLOUR else "L"
            pixels = np.asarray(image if image.mode == wanted else image.convert(wanted))
    except FordeError:
        raise
    except Exception as error:  # a broken file can raise anything, from struct.error to SyntaxError
        raise FordeError(f"the image '{name}' cannot be read; get it again or remove it.") from error
    return pixels.reshape(height, width, -1)


def decode_all(
    names: Sequence[str],
    read: Callable[[int], bytes],
    *,
    to_colour: bool,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """All images: uint8 `[N, H, W, C]`; `read(i)` gives the bytes of image i, which errors call `names[i]`.

    All must have the shape given, else that of the first. With `to_colour` grey ones are made colour, without it
    they may not be mixed with colour ones.

    >>> decode_all(["a.pgm"], lambda i: b"P5 2 1 255 " + bytes([7, 9]), to_colour=False).shape
    (1, 1, 2, 1)
    """
    if shape is None:
        shape = decode(read(0), names[0], to_colour=to_colour).shape
    try:
        out = np.empty((len(names), *shape), np.uint8)
    except MemoryError as error:
        raise FordeError(
            f"{len(names)} images of {shape[0]} x {shape[1]} pixels, the size of '{names[0]}', do not fit in memory; "
            "resize them."
        ) from error

    def fill(start: int) -> None:
        for position in range(start, min(start + PIECE, len(names))):
            pixels = decode(read(position), names[position], to_colour=to_colour)
            if pixels.shape != shape:
                raise _other_shape(names[position], pixels.shape, shape)
            out[position] = pixels

    # Pillow lets go of the interpreter's lock while it decodes, and reading files waits for the disk.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, range(0, len(names), PIECE)):
            pass
    return out


def _other_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> FordeError:
    if found[:2] == wanted[:2]:
        kinds = {1: "grey", 3: "colour"}
        return FordeError(
            f"the image '{name}' is {kinds[found[2]]}, but {kinds[wanted[2]]} images were expected as the first one "
            "is; convert them to one kind."
        )
    return FordeError(
        f"the image '{name}' has {found[0]} x {found[1]} pixels, but {wanted[0]} x {wanted[1]} were expected; "
        "resize all images to one size."
    )
