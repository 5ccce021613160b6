"""The method of a cell: its name, prior and options, one of which needs the cell's epochs."""

from __future__ import annotations

from dataclasses import dataclass

from forde.experiments.cells import Cell
from forde.methods import Method, method

LAST_STRENGTH = "last_strength"
"""Option of cells of `forde`: the strength falls from `strength` to this along a line over the epochs."""


@dataclass(frozen=True)
class Falling:
    """A strength along a line from `first` in epoch 0 to `last`, which it would reach one epoch after the last one.

    So a strength that falls to 0 is never 0, and every epoch has the same kind of step.

    >>> falling = Falling(12.0, 0.0, epochs=12)
    >>> falling(0), falling(6), falling(11)
    (12.0, 6.0, 1.0)
    """

    first: float
    last: float
    epochs: int

    def __call__(self, epoch: int) -> float:
        return self.first + (self.last - self.first) * epoch / self.epochs


def method_of(cell: Cell) -> Method:
    """The method that a cell trains with.

    >>> cell = Cell("images", "cifar10", "resnet18", "forde-tuned", 5, 12, options=(("alpha", 0.2),), prior="empcov")
    >>> method_of(cell) == method("forde-tuned", alpha=0.2, prior="empcov")
    True
    """
    options = dict(cell.options)
    if LAST_STRENGTH in options:
        last = options.pop(LAST_STRENGTH)
        options["repulsion_weight"] = Falling(options.pop("strength"), last, cell.epochs)
    return method(cell.method, prior=cell.prior, **options)
