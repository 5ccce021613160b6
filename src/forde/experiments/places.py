"""Where and how cells are run: what may differ between two runs of a cell without another result."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

CELLS, RUNS = "cells", "runs"
"""Folders of results, and of trainings that are not finished."""


@dataclass(frozen=True)
class Place:
    """Machine, folders and time.

    >>> Place(Path("results"), "cpu").cells.as_posix()
    'results/cells'
    """

    out: Path
    device: str
    data: Path | None = None
    """The folder of data sets; None for the usual one."""
    features: Path | None = None
    """The folder of pretrained features."""
    engine: str | None = None
    """None: compiled for images on a GPU, else `auto`."""
    budget: str = ""
    """Only noted."""
    command: str = ""
    """Only noted."""
    shared: bool = False
    """Whether other cells run on the machine at the same time: seconds of a step say nothing then, and are not kept."""
    deadline: float | None = None
    """Seconds since the epoch after which no step is begun."""

    @property
    def cells(self) -> Path:
        """One file for each finished cell."""
        return self.out / CELLS

    @property
    def runs(self) -> Path:
        """One folder for each training that was interrupted."""
        return self.out / RUNS

    @property
    def on_gpu(self) -> bool:
        """Whether cells are trained on a GPU."""
        return torch.device(self.device).type == "cuda"

    def engine_for(self, kind: str) -> str:
        """The engine asked for, or the one that suits such cells."""
        return self.engine or ("compiled" if self.on_gpu and kind == "images" else "auto")

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite without one."""
        return float("inf") if self.deadline is None else self.deadline - time.time()

    @property
    def can_stop(self) -> bool:
        """Whether a training can be interrupted from here: signals are for the main thread."""
        return threading.current_thread() is threading.main_thread()
