"""Mean and spread of inputs, by which data is noticed that was not prepared as that of training was."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import floor, hypot, isfinite, log, log10
from typing import Any

import torch
from torch import Tensor

from forde.errors import FordeError

ENOUGH = 16
"""Samples of which a scale is taken; and values of a sample below which it says little of the scale of others."""
ROWS, VALUES = 32, 2**14
"""At least so many samples of a batch are looked at, evenly spaced; of small ones as many as have these values."""
RATIO, SHIFT = 2.0, 1.5
"""Factor between deviations, and distance of means in deviations of training, from which either alone is remarked on.

Pixels in 0..1, where training had them normalised by their own statistics, are at a factor of 2.7 to 4; where by 0.5
and 0.5, at 2 and a distance of 1. Test data is within 1.1 and 0.2, a single class of it within 1.4 and 0.5; of the
corruptions only lost contrast and darkness are beyond.
"""


@dataclass(frozen=True)
class Scale:
    """Of all values of the inputs together.

    >>> images = torch.linspace(-2, 2, 16 * 64).view(16, 1, 8, 8)
    >>> trained = Scale.of(images)
    >>> trained.remark(images.flip(0)) is None
    True
    >>> trained.remark(images / 4 + 0.5)
    'inputs have mean 0.5 and standard deviation 0.289, but those of training had 0 and 1.16; were they prepared in the
    same way (scaled, normalised)?'
    """

    mean: float
    std: float

    @classmethod
    def of(cls, x: Any, *, values: int = VALUES) -> Scale | None:
        """That of inputs `[B, ...]`, from about so many values, or from those of a few samples where these are more.

        None unless they are one floating-point tensor of enough samples, finite and not constant.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point() or len(x) < ENOUGH or x.numel() == 0:
            return None
        some = x.detach()[:: -(-len(x) // max(ROWS, values // x[0].numel()))]
        # In one piece, for the device must finish for each number that is asked for.
        std, mean = torch.stack(torch.std_mean(some, correction=0)).tolist()
        if not isfinite(mean) or not isfinite(std) or std <= 0:
            return None
        digits = 5 - floor(log10(std))  # rounded, so that another order of the same sum gives the same
        return cls(round(mean, digits) + 0.0, round(std, digits))  # + 0.0 makes 0 of −0

    def remark(self, x: Any) -> str | None:
        """What to say of a batch `[B, ...]` whose scale is not this one."""
        found = Scale.of(x)
        if found is None:
            return None
        wider, few = log(found.std) - log(self.std), x[0].numel() < ENOUGH
        if few:  # part of a line or a plane is narrower and may be at its edge; a grid of plotting may go beyond
            wider = max(wider, 0.0)
        if hypot(wider / log(RATIO), (found.mean - self.mean) / self.std / SHIFT) <= (3 if few else 1):
            return None
        return (
            f"inputs have mean {found._short(found.mean)} and standard deviation {found._short(found.std)}, but those "
            f"of training had {self._short(self.mean)} and {self._short(self.std)}; were they prepared in the same way "
            "(scaled, normalised)?"
        )

    def _short(self, value: float) -> str:
        """To about a hundredth of the deviation."""
        return f"{round(value, 2 - floor(log10(self.std))) + 0.0:.3g}"

    def to_json(self) -> dict[str, float]:
        """Numbers, from which `from_json` makes the same again."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Scale:
        """Inverse of `to_json`, for a file that anybody may have written."""
        if not isinstance(value, Mapping) or set(value) != {"mean", "std"} or not all(map(_is_number, value.values())):
            raise FordeError("the scale of the training inputs is damaged; save the ensemble again.")
        if value["std"] <= 0:
            raise FordeError("the scale of the training inputs has a deviation of 0 or less; save the ensemble again.")
        return cls(float(value["mean"]), float(value["std"]))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # isfinite fails on long whole numbers
