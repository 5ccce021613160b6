"""Edges, distances and histogram equalisation of many small grey layers at once, for water drops.

The three functions follow the definitions of the usual computer-vision library to the last bit: thresholds
and truncations downstream turn any difference into a visible one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def reflect(layers: Tensor) -> Tensor:
    """(N, H, W) float -> (N, H + 2, W + 2), border reflect-101."""
    return functional.pad(layers[None], (1, 1, 1, 1), mode="reflect")[0]


def box_sum(layers: Tensor) -> Tensor:
    """Sums over 3 x 3 pixels of (N, H, W) float layers, border reflect-101."""
    wide = reflect(layers)
    rows = (wide[:, :-2] + wide[:, 1:-1]).add_(wide[:, 2:])
    return (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])


def canny(layers: Tensor, low: int, high: int) -> Tensor:
    """Canny edges of uint8 layers (N, H, W), bool: 3 x 3 Sobel, |gx| + |gy|, thin ridges, hysteresis."""
    wide = functional.pad(layers[None].float(), (1, 1, 1, 1), mode="replicate")[0].int()
    rows = (wide[:, :-2] + wide[:, 2:]).add_(wide[:, 1:-1], alpha=2)
    gx = rows[..., 2:] - rows[..., :-2]
    columns = (wide[..., :-2] + wide[..., 2:]).add_(wide[..., 1:-1], alpha=2)
    gy = columns[:, 2:] - columns[:, :-2]
    ax, ay = gx.abs(), gy.abs()
    strength = functional.pad(ax + ay, (1, 1, 1, 1))
    here = strength[:, 1:-1, 1:-1]

    # tan 22.5° in 15 bits separates horizontal from diagonal gradients; tan 67.5° = tan 22.5° + 2.
    flat = ax * 13573
    steep = flat + (ax << 16)
    ay = ay << 15
    horizontal, vertical = ay < flat, ay > steep
    in_row = (here > strength[:, 1:-1, :-2]) & (here >= strength[:, 1:-1, 2:])
    in_column = (here > strength[:, :-2, 1:-1]) & (here >= strength[:, 2:, 1:-1])
    falling = (here > strength[:, :-2, :-2]) & (here > strength[:, 2:, 2:])
    rising = (here > strength[:, :-2, 2:]) & (here > strength[:, 2:, :-2])
    opposed = (gx ^ gy) < 0
    diagonal = ~(horizontal | vertical) & ((opposed & rising) | (~opposed & falling))
    ridge = ((horizontal & in_row) | (vertical & in_column) | diagonal) & (here > low)
    return _grow(ridge & (here > high), ridge)


def _grow(seeds: Tensor, allowed: Tensor) -> Tensor:
    """The pixels of allowed (N, H, W) that 8-neighbour paths inside it connect to seeds, bool."""
    grown = functional.pad(seeds, (1, 1, 1, 1))
    inside = grown[:, 1:-1, 1:-1]
    while True:
        rows = grown[:, :-2] | grown[:, 1:-1] | grown[:, 2:]
        wider = (rows[..., :-2] | rows[..., 1:-1] | rows[..., 2:]) & allowed
        if torch.equal(wider, inside):
            return wider
        inside.copy_(wider)


def capped_distance(edges: Tensor, cap: int) -> Tensor:
    """Chamfer distance to the nearest edge, at most cap, in units of 2^-16, float32 (N, H, W).

    Moves cost 1 (straight), 1.4 (diagonal) and 2.1969 (knight's). A shortest path can make its straight
    horizontal moves first, inside the edge's own row, so those are settled for all rows at once and one pass
    down the rows does the rest; the pass up is the pass down of the layers upside down.
    """
    n, height, width = edges.shape
    straight, diagonal, knight = 65536, 91750, 143976
    limit = float(cap * straight)
    field = (~edges).float().mul_(limit)
    reach = 1
    while reach < min(width, cap):  # distance doubling within rows
        nearer = field.clone()
        torch.minimum(nearer[..., reach:], field[..., :-reach] + reach * straight, out=nearer[..., reach:])
        torch.minimum(nearer[..., :-reach], field[..., reach:] + reach * straight, out=nearer[..., :-reach])
        field, reach = nearer, 2 * reach

    both = torch.stack([field, field.flip(1)]).view(2 * n, height, width)
    rows = functional.pad(both, (2, 2), value=limit).transpose(0, 1).contiguous()  # (H, 2N, W + 4)
    inner = rows[..., 2:-2]
    for row in range(1, height):
        above, here = rows[row - 1], inner[row]
        sideways = torch.minimum(above[:, 1:-3], above[:, 3:-1]).add_(diagonal)
        far = torch.minimum(above[:, :-4], above[:, 4:])
        if row > 1:
            far = torch.minimum(far, torch.minimum(rows[row - 2][:, 1:-3], rows[row - 2][:, 3:-1]))
        best = torch.minimum(sideways, far.add_(knight))
        torch.minimum(best, above[:, 2:-2] + straight, out=best)
        torch.minimum(best, here, out=here)
    down, up = inner.view(height, 2, n, width).unbind(1)
    return torch.minimum(down, up.flip(0)).transpose(0, 1)


def equalise(layers: Tensor, bins: int) -> Tensor:
    """Histogram equalisation of int32 layers (N, H, W) with values below bins, to 0..255; a flat layer stays."""
    n = layers.shape[0]
    image = torch.arange(n, device=layers.device, dtype=torch.int32).view(n, 1) * bins
    entry = (layers.reshape(n, -1) + image).view(-1)
    counts = torch.bincount(entry, minlength=n * bins).view(n, bins)
    total = layers[0].numel()
    first = counts.gt(0).int().argmax(1, keepdim=True)
    lowest = counts.gather(1, first)
    # A true division: torch turns 255 / x into 255 · (1 / x), which rounds halves differently.
    scale = torch.full_like(lowest, 255, dtype=torch.float32).div_(total - lowest)
    # The bins below the first have cumulative count 0, so clamping only repairs them.
    stretched = ((counts.cumsum(1) - lowest).float() * scale).round_().clamp_(0, 255)
    values = torch.where(lowest == total, first.float(), stretched)
    return values.view(-1).index_select(0, entry).view_as(layers)
