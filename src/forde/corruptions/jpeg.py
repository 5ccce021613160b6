"""JPEG compression: everything a baseline 4:2:0 codec loses, computed for a whole batch at once.

Entropy coding is lossless, so compressing and decompressing is colour conversion, chroma subsampling, DCT,
quantisation and the way back. All of it is integer arithmetic here, with the 13-bit DCT constants and the
roundings of the widespread libjpeg-turbo, so the result is that of Pillow and OpenCV bit for bit, needs
neither of them, does not vary with the version of a codec and runs on any device.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from forde.corruptions.constants import Constants
from forde.corruptions.tensors import Draws, from_planes, to_levels, to_planes

_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8 for _ in range(4)),
)
"""Quantisation tables of the JPEG standard, Annex K."""


def apply_jpeg_compression(images: Tensor, draws: Draws, constants: Constants) -> Tensor:
    """Compress with the given quality and decompress; images (N, H, W, C) uint8.

    Every float32 below holds an integer under 2^24 or such an integer over a power of two: nothing rounds
    unless it says floor.
    """
    (quality,) = constants
    planes = to_planes(images).float()
    if planes.shape[1] == 1:
        return from_planes(_code(planes, _table(_LUMA, quality, images.device)).to(torch.uint8))
    height, width = planes.shape[2:]
    luma, blueness, redness = _ycc_from_rgb(planes)
    luma = _code(luma, _table(_LUMA, quality, images.device))
    chroma = _halve(torch.cat([blueness, redness], 1))
    chroma = _code(chroma, _table(_CHROMA, quality, images.device))
    chroma = _double(chroma[:, :, : (height + 1) // 2, : (width + 1) // 2])[:, :, :height, :width]
    return _rgb_from_ycc(luma, chroma)


def _ycc_from_rgb(planes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """RGB (N, 3, H, W) to luma, blue and red difference (N, 1, H, W) each, levels 0..255 with 16-bit weights."""
    red, green, blue = planes.split(1, 1)

    def weighted(r: int, g: int, b: int, offset: int) -> Tensor:
        total = (red * r).add_(green, alpha=g).add_(blue, alpha=b).add_(offset)
        return total.mul_(2.0**-16).floor_()

    half, middle = 1 << 15, 128 << 16
    return (
        weighted(19595, 38470, 7471, half),
        weighted(-11059, -21709, 32768, middle + half - 1),
        weighted(32768, -27439, -5329, middle + half - 1),
    )


def _rgb_from_ycc(luma: Tensor, chroma: Tensor) -> Tensor:
    """Luma (N, 1, H, W) and chroma (N, 2, H, W) to RGB uint8 (N, H, W, 3)."""
    blueness, redness = (chroma - 128).split(1, 1)
    half = 1 << 15
    red = (redness * 91881).add_(half).mul_(2.0**-16).floor_()
    green = (blueness * -22554).add_(redness, alpha=-46802).add_(half).mul_(2.0**-16).floor_()
    blue = (blueness * 116130).add_(half).mul_(2.0**-16).floor_()
    return torch.stack([to_levels(plane.add_(luma))[:, 0] for plane in (red, green, blue)], -1)


def _halve(planes: Tensor) -> Tensor:
    """Means of 2 x 2 pixels, (N, 2, H, W) -> (N, 2, ≥ H / 2, ≥ W / 2); halves go down and up in turn.

    Columns are completed to whole blocks before the mean and rows only to an even number: a codec pads so.
    """
    height, width = planes.shape[2:]
    planes = functional.pad(planes, (0, -width % 16, 0, height % 2), mode="replicate")
    bias = torch.tensor([1.0, 2.0], device=planes.device).repeat(planes.shape[3] // 4)
    rows = planes[:, :, ::2] + planes[:, :, 1::2]
    return (rows[..., ::2] + rows[..., 1::2]).add_(bias).mul_(0.25).floor_()


def _double(planes: Tensor) -> Tensor:
    """Enlarge (N, 2, h, w) to (N, 2, 2h, 2w) with weights 9, 3, 3, 1 sixteenths of the four nearest samples."""
    n, kinds, height, width = planes.shape
    tall = functional.pad(planes, (0, 0, 1, 1), mode="replicate")
    three = planes * 3
    rows = torch.stack([three + tall[:, :, :-2], three + tall[:, :, 2:]], 3).view(n, kinds, 2 * height, width)
    wide = functional.pad(rows, (1, 1, 0, 0), mode="replicate")
    three = rows * 3
    left = (three + wide[..., :-2]).add_(8)
    right = (three + wide[..., 2:]).add_(7)
    return torch.stack([left, right], -1).mul_(1 / 16).floor_().view(n, kinds, 2 * height, 2 * width)


def _code(planes: Tensor, table: Tensor) -> Tensor:
    """DCT, quantisation by table (8, 8) and inverse DCT of (N, C, H, W) planes, float32 levels 0..255.

    The first pass stays below 2^24, where float32 is exact; the others need float64.
    """
    n, kinds, height, width = planes.shape
    whole = functional.pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate").contiguous()
    down, across = whole.shape[2] // 8, whole.shape[3] // 8
    size = (n * kinds, down, 8, across, 8)
    dct = _dct_matrix(planes.device)

    # Rows, then columns, which are brought to the last axis for it and stay there until they are transformed back.
    rows = _round_shift(whole.view(-1, 8).sub_(128) @ dct.T.float(), 11)
    columns = rows.view(size).permute(0, 1, 3, 4, 2).double().reshape(-1, 8)
    blocks = _round_shift(columns @ dct.T, 15).view(-1, 8, 8)
    # The integer DCT is 8 times the orthonormal one. Halves are rounded away from 0: the factor moves them, and
    # nothing else, over the edge.
    blocks = blocks.mul_((1 + 1e-12) / (8 * table.T)).round_().mul_(table.T)
    columns = _round_shift(blocks.view(-1, 8) @ dct, 11).view(n * kinds, down, across, 8, 8)
    rows = _round_shift(columns.permute(0, 1, 4, 2, 3).reshape(-1, 8) @ dct, 18)
    return rows.add_(128).clamp_(0, 255).float().view(whole.shape)[:, :, :height, :width]


def _round_shift(values: Tensor, bits: int) -> Tensor:
    """⌊v / 2^bits + ½⌋ in place."""
    return values.mul_(2.0**-bits).add_(0.5).floor_()


@lru_cache(maxsize=64)
def _table(standard: tuple[tuple[int, ...], ...], quality: float, device: torch.device) -> Tensor:
    """A standard quantisation table scaled to a quality of 1..100, float64 (8, 8)."""
    percent = int(5000 / quality) if quality < 50 else int(200 - 2 * quality)
    scaled = (np.array(standard) * percent + 50) // 100
    return torch.from_numpy(np.clip(scaled, 1, 255).astype(np.float64)).to(device)


@lru_cache(maxsize=8)
def _dct_matrix(device: torch.device) -> Tensor:
    """2^13 √8 times the orthonormal DCT-II matrix, as the sums of rounded constants that codecs use, (8, 8).

    The factorisation of Loeffler, Ligtenberg and Moschytz needs 12 multiplications; rounding each of its
    constants to 13 bits, not each matrix entry, is what makes results agree with other codecs.
    """
    c = [math.sqrt(2) * math.cos(k * math.pi / 16) for k in range(8)]

    def fixed(value: float) -> int:
        return round(value * 2**13)

    even = fixed(c[6])
    low, high = even + fixed(c[2] - c[6]), even - fixed(c[2] + c[6])
    common = fixed(c[3])
    outer, inner = -fixed(c[3] - c[7]), -fixed(c[1] + c[3])
    first, second = common - fixed(c[3] + c[5]), common - fixed(c[3] - c[5])
    odd = [  # rows: coefficients 1, 3, 5, 7; columns: differences of samples (0, 7), (1, 6), (2, 5), (3, 4)
        [fixed(c[1] + c[3] - c[5] - c[7]) + outer + second, common, second, outer + common],
        [common, fixed(c[1] + c[3] + c[5] - c[7]) + inner + first, inner + common, first],
        [second, inner + common, fixed(c[1] + c[3] - c[5] + c[7]) + inner + second, common],
        [outer + common, first, common, fixed(-c[1] + c[3] + c[5] - c[7]) + outer + first],
    ]
    one = 2**13
    rows = [
        [one, one, one, one],
        odd[0],
        [low, even, -even, -low],
        odd[1],
        [one, -one, -one, one],
        odd[2],
        [even, high, -high, -even],
        odd[3],
    ]
    half = torch.tensor(rows, dtype=torch.float64, device=device)
    sign = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64, device=device)[:, None]
    return torch.cat([half, sign * half.flip(1)], 1)
