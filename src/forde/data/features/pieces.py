"""Features of consecutive samples, some of them written already, put together at the end."""

from __future__ import annotations

from collections.abc import Callable

import torch

from forde.data.features.shards import Rows, Shards
from forde.errors import FordeError


class Pieces:
    """What was computed: in memory, and where there are shards on the disk.

    >>> pieces = Pieces(None)
    >>> pieces.add(0, Rows(torch.zeros(2, 3), torch.tensor([0, 1])), "")
    >>> pieces.together(2).features.shape
    torch.Size([2, 3])
    """

    def __init__(self, shards: Shards | None) -> None:
        self._shards = shards
        self._used: set[int] = set()
        """First samples of the shards that belong to the result."""
        self._held: list[Rows] = []
        """Batches that are in no shard yet."""
        self._start = self._stop = 0
        self._print = ""

    def covered(self, start: int, stop: int, fingerprint: str) -> bool:
        """Whether a shard has these samples; `fingerprint` is that of all samples up to `stop`."""
        if self._shards is None:
            return False
        spans = self._shards.stops.items()
        touched = [first for first, last in spans if first < stop and start < last]
        if not touched:
            return False
        first, last = touched[0], self._shards.stops[touched[0]]
        if len(touched) > 1 or start < first or stop > last:
            raise FordeError(
                f"the loader gives batches of other sizes than those of which '{self._shards.folder}' holds features; "
                "give it the same batch size, or delete that folder."
            )
        if stop == last:
            self._shards.check(first, fingerprint)
        self._used.add(first)
        return True

    def add(self, start: int, rows: Rows, fingerprint: str) -> None:
        """A batch that was computed."""
        if self._held and start != self._stop:
            self.save()  # a shard in between was there already
        if not self._held:
            self._start = start
        self._held.append(rows)
        self._stop, self._print = start + len(rows.labels), fingerprint

    def save(self) -> bool:
        """Write what is in memory as one shard; whether there was any."""
        if self._shards is None or not self._held:
            return False
        self._shards.save(self._start, joined(self._held), self._print)
        self._used.add(self._start)
        self._held = []
        return True

    def together(self, n: int) -> Rows:
        """All of it, in order; n samples have passed."""
        parts: dict[int, Callable[[], Rows]] = {}
        for start in self._used:
            parts[start] = lambda start=start: self._shards.read(start)  # type: ignore[misc, union-attr]
        if self._held:
            parts[self._start] = lambda: joined(self._held)
        if not parts:
            raise FordeError("the data is empty; give at least one sample.")
        rows = joined([parts[start]() for start in sorted(parts)])
        if len(rows.labels) != n and self._shards is not None:
            raise FordeError(
                f"the loader ended after {n:,} samples, but '{self._shards.folder}' holds features of more; give the "
                "same data, or delete that folder."
            )
        return rows


def joined(parts: list[Rows]) -> Rows:
    """Consecutive rows as one."""
    features, labels = zip(*parts, strict=True)
    return Rows(torch.cat(features), torch.cat(labels))
