"""How a finished run came to its end, in a file beside the ensemble."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from forde.durable import write_whole

NAME = "outcome.json"


@dataclass(frozen=True)
class Outcome:
    """What cannot be told from the records.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp())
    >>> Outcome(7, stopped="validation_nll was best in epoch 3", best_epoch=3).write(path)
    >>> Outcome.read(path).best_epoch, Outcome.read(path / "elsewhere") is None
    (3, True)
    """

    epochs: int
    """That were trained."""
    stopped: str | None = None
    """As `History.stopped`."""
    best_epoch: int | None = None
    """As `History.best_epoch`."""

    def write(self, folder: Path) -> None:
        """Into the folder of the run, whole."""
        write_whole(folder / NAME, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> Outcome | None:
        """From the folder of a run; None where there is none, as in runs of earlier versions, or it is damaged."""
        try:
            found = json.loads((folder / NAME).read_bytes())
            return cls(int(found["epochs"]), found["stopped"], found["best_epoch"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
