"""The paper's learning-rate schedule: constant, then linear to 1 %, then constant."""

from __future__ import annotations

from collections.abc import Callable

from forde.methods import Method


def paper_factor(epoch: int, epochs: int, *, start: float = 0.5, end: float = 0.9, last: float = 0.01) -> float:
    """Factor of the learning rate in an epoch, with t = epoch/epochs: 1 to t = ½, linear to 0.01 at t = 0.9, then 0.01.

    >>> [round(paper_factor(epoch, 300), 4) for epoch in (0, 150, 210, 270, 299)]
    [1.0, 1.0, 0.505, 0.01, 0.01]
    """
    t = epoch / epochs
    if t <= start:
        return 1.0
    if t >= end:
        return last
    return 1.0 - (1.0 - last) * (t - start) / (end - start)


def method_factor(method: Method, epochs: int, lr: float) -> Callable[[int], float]:
    """The factor of `lr` by epoch that a method wants where nobody says otherwise: the paper's for most.

    >>> from forde import method
    >>> swag = method_factor(method("swag", swa_lr=0.02), 300, lr=0.1)
    >>> [round(0.1 * swag(epoch), 4) for epoch in (0, 80, 145, 299)]
    [0.1, 0.1, 0.02, 0.02]
    """
    over, last = method.falling(epochs, lr)
    return lambda epoch: paper_factor(epoch, over, last=last)
