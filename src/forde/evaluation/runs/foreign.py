"""Inputs of another kind than those trained on: does the uncertainty tell them apart?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from forde.data.description import Images, Table
from forde.data.inputs import Transform
from forde.errors import FordeError
from forde.evaluation.robustness.cells import Cell, clean_cell
from forde.evaluation.robustness.fingerprints import fingerprint, model_fingerprint
from forde.evaluation.robustness.loading import ready_cell
from forde.evaluation.robustness.precision import DTYPES, EvaluationPrecision
from forde.evaluation.robustness.predicting import predict_cell, predicting
from forde.evaluation.robustness.results import Estimate
from forde.evaluation.robustness.saved_cells import path_of, write_cell
from forde.evaluation.runs.inputs import BATCH, inputs_of, labels_of, to_units
from forde.evaluation.runs.quantities import SavedQuantities
from forde.evaluation.runs.regression import clean_rows, quantities_of
from forde.metrics.selective import auroc
from forde.metrics.statistics import MEANS
from forde.training.trained import TrainedRun

FOREIGN = "foreign"
"""The cell's name."""
LUMINANCE = (0.299, 0.587, 0.114)


def as_images_of(foreign: Images, shape: tuple[int, ...]) -> tuple[Images, str]:
    """Foreign images in the shape `(H, W, C)` that the network takes, and a remark on what was done; "" if nothing.

    >>> from forde.data import from_arrays
    >>> found, remark = as_images_of(from_arrays(np.zeros((2, 16, 16, 3), np.uint8), [0, 1]), (8, 8, 1))
    >>> found.images.shape, remark
    ((2, 8, 8, 1), 'resized from 16 x 16 to 8 x 8 and turned grey')
    """
    height, width, channels = shape
    given = foreign.images if foreign.images.ndim == 4 else foreign.images[..., None]
    if given.shape[1:] == shape:
        return foreign, ""
    remarks = []
    images = torch.from_numpy(np.array(given)).permute(0, 3, 1, 2).float()
    if images.shape[2:] != (height, width):
        before = " x ".join(map(str, images.shape[2:]))
        images = F.interpolate(images, (height, width), mode="bilinear", antialias=True, align_corners=False)
        remarks.append(f"resized from {before} to {height} x {width}")
    if images.shape[1] != channels:
        if {images.shape[1], channels} != {1, 3}:
            raise FordeError(
                f"the foreign images have {images.shape[1]} channels, but {channels} were expected; give other images."
            )
        weights = torch.tensor(LUMINANCE).view(1, 3, 1, 1)
        images = images.expand(-1, 3, -1, -1) if channels == 3 else (images * weights).sum(1, keepdim=True)
        remarks.append("given three equal channels" if channels == 3 else "turned grey")
    found = images.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()
    return replace(foreign, images=found), " and ".join(remarks)


def evaluate_foreign(
    run: TrainedRun, data: Images | Table, foreign: Images | Table, folder: Path, precision: EvaluationPrecision
) -> dict[str, Any]:
    """Uncertainties on foreign inputs, and how well each tells them from clean ones; see `scores_file`."""
    remark = ""
    if isinstance(foreign, Images) and isinstance(data, Images):
        foreign, remark = as_images_of(foreign, run.inputs.shape)
        # The channel statistics of the training data: the network has never seen others.
        transform, inputs = inputs_of(run, data)[0], foreign.images
    else:
        transform, inputs = inputs_of(run, foreign)
    unknown = np.zeros(len(foreign), np.int64)
    if run.inputs.n_classes:
        usual = _terms(run, clean_cell(inputs_of(run, data)[1], labels_of(data)), folder, transform, precision)
        other = _terms(run, Cell(FOREIGN, 0, lambda: (inputs, unknown)), folder, transform, precision)
        pairs = {name: (usual[:, MEANS.index(name)], other[:, MEANS.index(name)]) for name in ("epistemic", "total")}
    else:
        clean = quantities_of(
            run.ensemble, clean_rows(inputs_of(run, data)[1], labels_of(data)), folder, to_units(run)
        )[0]
        cell = Cell(FOREIGN, 0, lambda: (inputs, unknown))
        pairs = _deviations(clean, quantities_of(run.ensemble, cell, folder, to_units(run))[0])
    return {
        "name": foreign.description.name, "samples": len(foreign), "source": foreign.source, "remark": remark,
        **{name: Estimate(float(b.mean()), float(b.std() / len(b) ** 0.5))._asdict() for name, (_, b) in pairs.items()},
        "auroc": {name: auroc(a, b)._asdict() for name, (a, b) in pairs.items()},
    }  # fmt: skip


def _deviations(clean: SavedQuantities, foreign: SavedQuantities) -> dict[str, tuple[Tensor, Tensor]]:
    a, b = clean.prediction, foreign.prediction
    return {"epistemic_std": (a.epistemic.sqrt(), b.epistemic.sqrt()), "total_std": (a.std, b.std)}


def _terms(run: TrainedRun, cell: Cell, folder: Path, transform: Transform, precision: EvaluationPrecision) -> Tensor:
    """The terms `[N, 8]` of a cell outside the corruptions, read from its file or predicted and kept."""
    ensemble, dtype = run.ensemble, DTYPES[precision]
    images, _ = cell.load()
    probe = transform(torch.from_numpy(np.array(images[:8])).to(ensemble.device)).float()
    content = fingerprint(model_fingerprint(ensemble, None), probe, "logits", str(dtype))
    ready = ready_cell(cell, folder, content, ensemble.device)
    if ready.saved is not None:
        return ready.saved.terms
    options: dict[str, Any] = {"outputs": "logits", "device": ensemble.device}
    with predicting(ensemble, transform=transform, dtype=dtype, **options) as outputs_of:
        saved = predict_cell(outputs_of, ready.images, ready.labels, batch_size=BATCH, **options)
    write_cell(path_of(folder, cell.name), saved, ready.content)
    return saved.terms
