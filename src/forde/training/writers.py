"""Where the record of each epoch goes: one small protocol, and a file, TensorBoard and Weights & Biases behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from forde.durable import append_line, write_whole
from forde.errors import FordeError
from forde.training.history import Record


class Writer(Protocol):
    """Anything with these two methods can be given to `fit(writers=[...])`."""

    def record(self, record: Record) -> None:
        """Take note of an epoch."""

    def close(self) -> None:
        """Training is over, or was interrupted."""


class JsonLines:
    """One line of JSON per epoch, on the disk when `record` returns; a number that is not finite is null.

    Args:
        path: the file.
        records: those that it should begin with; whatever else it held is replaced.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> writer = JsonLines(path, [{"epoch": 0.0, "loss": 1.5}])
    >>> writer.record({"epoch": 1.0, "loss": 1.0, "bandwidth": float("nan")})
    >>> print(path.read_text(), end="")
    {"epoch": 0.0, "loss": 1.5}
    {"epoch": 1.0, "loss": 1.0, "bandwidth": null}
    >>> read_records(path)[0]
    {'epoch': 0.0, 'loss': 1.5}
    """

    def __init__(self, path: str | Path, records: Iterable[Record] = ()) -> None:
        self.path = Path(path)
        write_whole(self.path, "".join(f"{json.dumps(finite_or_null(record))}\n" for record in records).encode())

    def record(self, record: Record) -> None:
        """Append a line."""
        append_line(self.path, json.dumps(finite_or_null(record)))

    def close(self) -> None:
        """Nothing is held open."""


class TensorBoard:
    """Scalars for TensorBoard, one curve per quantity.

    Args:
        folder: where the event files go.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise FordeError(
                "the TensorBoard writer needs 'tensorboard'; run: pip install 'forde[tensorboard]'"
            ) from None
        self._make: Callable[[str], Any] = SummaryWriter
        self._folder = str(folder)
        self._events: Any = None

    def record(self, record: Record) -> None:
        """Add a point to each curve."""
        self._events = self._events or self._make(self._folder)  # no file before there is something to write
        for name, value in record.items():
            if name != "epoch":
                self._events.add_scalar(name, value, int(record["epoch"]))
        self._events.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()


class WeightsAndBiases:
    """Records for Weights & Biases.

    Args:
        options: of `wandb.init`: `project="robustness"`; for a run that is resumed also `id="a", resume="allow"`.
    """

    def __init__(self, **options: Any) -> None:
        try:
            import wandb
        except ModuleNotFoundError:
            raise FordeError("the Weights & Biases writer needs 'wandb'; run: pip install 'forde[wandb]'") from None
        self._run: Any = wandb.init(**options)

    def record(self, record: Record) -> None:
        """Log an epoch."""
        self._run.log(dict(record), step=int(record["epoch"]))

    def close(self) -> None:
        """Finish the upload."""
        self._run.finish()


def finite_or_null(record: Record) -> dict[str, float | None]:
    """As JSON has neither NaN nor infinity.

    >>> finite_or_null({"loss": float("inf"), "lr": 0.1})
    {'loss': None, 'lr': 0.1}
    """
    return {name: value if math.isfinite(value) else None for name, value in record.items()}


def from_json(record: dict[str, Any]) -> Record:
    """Inverse of `finite_or_null`; null is NaN."""
    return {name: float("nan") if value is None else float(value) for name, value in record.items()}


def read_records(path: Path) -> list[Record]:
    """The records of a file that `JsonLines` wrote, as far as they can be read: lines that are damaged are left out.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
    >>> _ = path.write_text('{"epoch": 0, "loss": 2.5}\\n{"epoch": 1, "lo')
    >>> read_records(path)
    [{'epoch': 0.0, 'loss': 2.5}]
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        with suppress(ValueError, AttributeError, TypeError, OverflowError, RecursionError):
            records.append(from_json(json.loads(line)))
    return records
