"""The file that a cell's predictions are kept in.

It holds codes `[M, N, C]` of the members' log-probabilities (see `quantisation`), labels `[N]`, the exact terms of the
usual metrics for each image `[N, 8]` (see `statistics`), and the fingerprint of what they were computed from. It is
written beside its destination and renamed, so that it is whole or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forde.durable import make_folder, write_whole
from forde.errors import FordeError
from forde.evaluation.robustness.quantisation import decode


@dataclass(frozen=True)
class SavedCell:
    """What members predicted for one cell."""

    codes: Tensor
    """`[M, N, C]` int16, see `quantisation`."""
    labels: Tensor
    """`[N]`."""
    terms: Tensor
    """`[N, 8]` float64, computed before the probabilities were rounded to 16 bits."""

    @property
    def member_log_probs(self) -> Tensor:
        """`[M, N, C]` float64."""
        return decode(self.codes)

    @property
    def member_probs(self) -> Tensor:
        """`[M, N, C]` float64."""
        return self.member_log_probs.exp()


def path_of(folder: Path, name: str) -> Path:
    """The file of the cell called `name` in `folder`."""
    return folder / f"{name.replace('/', '_')}.safetensors"


def write_cell(path: Path, saved: SavedCell, content: str) -> None:
    """Write a cell that was computed from what the fingerprint `content` names."""
    from safetensors.numpy import save

    arrays = {
        "codes": saved.codes.cpu().numpy().view(np.uint16),
        "labels": saved.labels.cpu().numpy(),
        "terms": saved.terms.cpu().numpy(),
    }
    data = save(arrays, metadata={"format": "forde-cell-1", "fingerprint": content})
    try:
        make_folder(path.parent)
        write_whole(path, data)
    except OSError as error:
        raise FordeError(f"could not write '{path}': {error.strerror}; choose a writable folder.") from None


def read_cell(path: Path, content: str | None = None) -> SavedCell | None:
    """The cell in a file; None if the file is missing, damaged, or not of what the fingerprint `content` names."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="np") as file:
            if content is not None and (file.metadata() or {}).get("fingerprint") != content:
                return None
            codes, labels, terms = (file.get_tensor(name) for name in ("codes", "labels", "terms"))
        return SavedCell(torch.from_numpy(codes.view(np.int16)), torch.from_numpy(labels), torch.from_numpy(terms))
    except Exception:  # a damaged file can raise anything, from SafetensorError to TypeError
        return None
