"""Sums of shifted copies of a batch, the common core of every blur, on a padded batch flattened per image.

A shift by (dy, dx) of a padded image is one offset into its flat memory, so every tap of a kernel is one
long contiguous read. The columns that run over into the next row are computed and dropped: cheaper than
inner loops of one row.
"""

from __future__ import annotations

import torch
from torch import Tensor


def padded(images: Tensor, border: str, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
    """(N, H, W, C) uint8 -> float32 (N, top + H + bottom + 1, left + W + right, C), border "edge" or "mirror".

    rows = (top, bottom), columns = (left, right). The extra last row, zeros, only keeps the reads of the
    dropped columns inside the memory. "edge" repeats the outermost pixels, "mirror" is dcb|abcd|cba.
    """
    n, height, width, channels = images.shape
    (top, bottom), (left, right) = rows, columns
    out = torch.empty((n, top + height + bottom + 1, left + width + right, channels), device=images.device)
    middle = out[:, top : top + height]
    middle[:, :, left : left + width] = images.float()
    for line, source in _border_lines(border, width, left, right):
        middle[:, :, line] = middle[:, :, source]
    for line, source in _border_lines(border, height, top, bottom):
        out[:, line] = out[:, source]
    out[:, -1] = 0
    return out


def _border_lines(border: str, length: int, before: int, after: int) -> list[tuple[slice | int, slice | int]]:
    """Pairs (where, from where) that fill the border of a padded axis from its middle."""
    if border == "edge":
        first, last = before, before + length - 1
        return [(slice(0, before), slice(first, first + 1)), (slice(last + 1, None), slice(last, last + 1))]
    period = 2 * (length - 1)
    lines = [*range(before), *range(before + length, before + length + after)]
    folded = [(line - before) % period for line in lines]
    return [(line, before + min(k, period - k)) for line, k in zip(lines, folded, strict=True)]


def shifted(flat: Tensor, row: int, column: int, wide: int, span: int) -> Tensor:
    """The view of flat (N, Hp·wide) that starts at (row, column) and is span long; wide = values per row."""
    start = row * wide + column
    return flat[:, start : start + span]
