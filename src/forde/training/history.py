"""What happened in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from forde.errors import unknown_name
from forde.methods.base import Method

Record = dict[str, float]
"""What is known of an epoch, by name."""
NOT_ALWAYS = frozenset(
    ("disagreement", "gradient_cosine", "skipped", "roll_backs", "collected", "kl", "entropy", "beta")
)  # fmt: skip
"""What a record has where it was measured."""


@dataclass(repr=False)
class History:
    """One record per epoch, and the method as fitted to the data.

    Each record has `epoch`, `loss` (mean over members and batches), `repulsion`, `bandwidth`, `lr` (at its beginning),
    `seconds`, and, where diagnostics ran, `disagreement` and `gradient_cosine` of the members on a probe batch. With
    validation data there are `validation_nll` and other metrics of the ensemble. Methods of one network add their own:
    `collected` (swag), `kl`, `entropy` and `beta` (node-bnn).

    >>> history = History(Method(), [{"epoch": 0.0, "loss": 1.5}, {"epoch": 1.0, "loss": 1.0}])
    >>> history["loss"]
    [1.5, 1.0]
    >>> history
    History(epochs=2, loss=1.5 to 1)
    """

    method: Method
    records: list[Record] = field(default_factory=list)
    best_epoch: int | None = None
    """The epoch whose monitored value on the validation data was the best, counted from 0; None without such data."""
    stopped: str | None = None
    """Why training ended before its last epoch; None where it did not."""

    def __getitem__(self, name: str) -> list[float]:
        """Values of one quantity over epochs (NaN where it was not measured).

        >>> History(Method(), [{"epoch": 0.0, "loss": 1.5}])["loss"]
        [1.5]
        """
        known = {key for record in self.records for key in record}
        if self.records and name not in known | NOT_ALWAYS:
            raise unknown_name("quantity", str(name), sorted(known))
        return [record.get(name, float("nan")) for record in self.records]

    def __repr__(self) -> str:
        told = [f"epochs={len(self)}"]
        if self.records and "loss" in self.records[0]:
            told.append(f"loss={self['loss'][0]:.4g} to {self['loss'][-1]:.4g}")
        if self.best_epoch is not None:
            told.append(f"best_epoch={self.best_epoch}")
        if self.stopped is not None:
            told.append(f"stopped={self.stopped!r}")
        return f"History({', '.join(told)})"

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)
