"""Where frost textures come from: a folder, the files of an installed package, or a synthesis."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from forde.corruptions.frost import PHOTOS
from forde.corruptions.synthetic_frost import synthetic_textures
from forde.errors import FordeError
from forde.reading.budget import check_fits
from forde.reading.decoding import WORKING_BYTES, decode, shape_of
from forde.reading.files import check_is_file

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


def frost_folder(frost: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of frost photographs in use: the one given, else that of an installed imagecorruptions, else none.

    The package is located, not imported: its import fails beside current versions of its dependencies.
    """
    if frost is not None:
        return Path(frost)
    found = importlib.util.find_spec("imagecorruptions")
    for location in (found.submodule_search_locations or []) if found else []:
        folder = Path(location) / "frost"
        if folder.is_dir():
            return folder
    return None


def frost_name(frost: str | os.PathLike[str] | None = None) -> str:
    """What to call the corruption in a report: "frost", or "frost (synthetic)" when there are no photographs.

    >>> import forde.corruptions
    >>> forde.corruptions.frost_name("photos/of/frost")
    'frost'
    """
    return "frost" if frost_folder(frost) else "frost (synthetic)"


@lru_cache(maxsize=8)
def load_textures(folder: Path | None, scale: float) -> tuple[np.ndarray, ...]:
    """The textures at a scale, uint8 (rows, columns, 3) each: the first five photographs by name, or synthetic ones."""
    if folder is None:
        return synthetic_textures(scale)
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in _SUFFIXES)[:PHOTOS]
    if not files:
        raise FordeError(
            f"the frost folder '{folder}' holds no image; give a folder with PNG or JPEG photographs of frost, "
            "or leave frost out to use synthetic textures."
        )
    return tuple(_shrink(_read(path, scale), scale) for path in files)


def _read(path: Path, scale: float) -> np.ndarray:
    """One image file as RGB uint8 (rows, columns, 3), if there is memory for it and for scaling it."""
    check_is_file(path)
    encoded = path.read_bytes()
    try:
        rows, columns, _ = shape_of(encoded, str(path), to_colour=True)
    except ImportError as error:
        raise FordeError(
            "reading frost photographs needs Pillow, which is not installed; pip install 'forde[data]'."
        ) from error
    # Scaling takes int64 of three channels three times, of a line's share of pixels.
    check_fits(round(rows * columns * (WORKING_BYTES + 72 * scale)), path, [path])
    return decode(encoded, str(path), to_colour=True)


def _shrink(photo: np.ndarray, scale: float) -> np.ndarray:
    """Bilinear resize by a factor ≤ 1 with pixel centres aligned, uint8; by 1/5 it is every fifth pixel.

    In the fixed-point arithmetic of OpenCV, with which the published textures were scaled.
    """
    if scale == 1:
        return photo
    left, right, share_left, share_right = _linear_taps(photo.shape[1], scale)
    top, bottom, share_top, share_bottom = _linear_taps(photo.shape[0], scale)
    lines = photo[:, left].astype(np.int64) * share_left[:, None]
    lines += photo[:, right].astype(np.int64) * share_right[:, None]
    lines >>= 4
    upper = (lines[top] * share_top[:, None, None]) >> 16
    lower = (lines[bottom] * share_bottom[:, None, None]) >> 16
    return ((upper + lower + 2) >> 2).astype(np.uint8)


def _linear_taps(size: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Per output pixel of a line: its two source pixels and their shares in units of 1/2048, int64 each."""
    position = (np.arange(round(size * scale)) + 0.5) / scale - 0.5
    low = np.floor(position).astype(np.int64)
    part = (position - low).astype(np.float32)
    shares = [np.rint(share * np.float32(2048)).astype(np.int64) for share in (1 - part, part)]
    return np.clip(low, 0, size - 1), np.clip(low + 1, 0, size - 1), *shares
