"""Getting a cell ready: its saved predictions if they are of this model and these data, else its data."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from forde.errors import FordeError
from forde.evaluation.robustness.cells import Cell, Images, as_tensor
from forde.evaluation.robustness.fingerprints import fingerprint
from forde.evaluation.robustness.saved_cells import SavedCell, path_of, read_cell

WHOLE_ON_DEVICE = 2**30
"""Bytes up to which a cell's images are copied to the device at once; larger ones go batch by batch."""


class Ready(NamedTuple):
    """A cell's saved predictions, or what is needed to make them."""

    content: str
    """Fingerprint of model, settings and data; empty where nothing is saved."""
    saved: SavedCell | None
    images: Images
    labels: Tensor


def ready_cell(cell: Cell, folder: Path | None, run: str, device: torch.device) -> Ready:
    """Read the cell's file in `folder` if it was made by the same `run` from the same data, else load its data."""
    nothing = torch.empty(0)
    content = ""
    if folder is not None and cell.fingerprint:
        content = fingerprint(run, cell.fingerprint)
        if saved := read_cell(path_of(folder, cell.name), content):
            return Ready(content, saved, nothing, nothing)
    images, given = cell.load()
    labels = _as_labels(given, len(images), cell.name)
    if folder is not None and not content:
        content = fingerprint(run, images, labels)
        if saved := read_cell(path_of(folder, cell.name), content):
            return Ready(content, saved, nothing, nothing)
    if images.nbytes <= WHOLE_ON_DEVICE:
        images = as_tensor(images).to(device)
    return Ready(content, None, images, labels)


def _as_labels(given: Images, n_images: int, name: str) -> Tensor:
    labels = as_tensor(given if isinstance(given, Tensor) else np.asarray(given)).cpu()
    if labels.shape != (n_images,) or labels.is_floating_point():
        raise FordeError(
            f"the cell '{name}' has {n_images} images and labels of shape {list(labels.shape)} and type "
            f"{labels.dtype}; give one whole number per image."
        )
    return labels.long()
