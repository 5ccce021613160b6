"""What happened in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forde.methods.base import Method

Record = dict[str, float]


@dataclass
class History:
    """One record per epoch, and the method as fitted to the data.

    Each record has `epoch`, `loss` (mean over members and batches), `repulsion`, `bandwidth`, `lr`, `seconds`, and,
    where diagnostics ran, `disagreement` and `gradient_cosine` of the members on a probe batch. Methods of one network
    add their own: `collected` (swag), `kl`, `entropy` and `beta` (node-bnn).

    >>> history = History(Method(), [{"epoch": 0.0, "loss": 1.5}, {"epoch": 1.0, "loss": 1.0}])
    >>> history["loss"]
    [1.5, 1.0]
    """

    method: Method
    records: list[Record] = field(default_factory=list)

    def __getitem__(self, name: str) -> list[float]:
        """Values of one quantity over epochs (NaN where it was not measured)."""
        return [record.get(name, float("nan")) for record in self.records]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)
