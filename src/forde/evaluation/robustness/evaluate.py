"""Robustness in one call: an ensemble on clean data and on every corruption at every severity."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from forde.data.inputs import Transform, normalise
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.evaluation.outputs import OutputKind
from forde.evaluation.robustness.cells import Cell, Data, Images, as_tensor, clean_cell, unique_names
from forde.evaluation.robustness.devices import device_of, float64_device
from forde.evaluation.robustness.fingerprints import fingerprint, model_fingerprint
from forde.evaluation.robustness.loading import ready_cell
from forde.evaluation.robustness.precision import DTYPES, EvaluationPrecision, named_precision
from forde.evaluation.robustness.predicting import Model, predict_cell, predicting
from forde.evaluation.robustness.prefetch import ahead
from forde.evaluation.robustness.resampling import resampled_sums, resampler
from forde.evaluation.robustness.results import MANIFEST, RobustnessResult, summarise
from forde.evaluation.robustness.saved_cells import path_of, write_cell
from forde.forward import CHANNELS
from forde.metrics.statistics import scores
from forde.progress import progress_bar

log = logging.getLogger(__name__)


class CellDone(NamedTuple):
    """Told to `on_cell` after each cell."""

    name: str
    done: int
    total: int
    scores: dict[str, float]
    reused: bool
    """Whether it was finished before, by an evaluation into the same folder."""


def evaluate_robustness(
    model: Model,
    clean: Data,
    corrupted: Iterable[Cell] = (),
    *,
    folder: str | os.PathLike[str] | None = None,
    transform: Transform | None = None,
    outputs: OutputKind = "logits",
    model_id: str | None = None,
    precision: EvaluationPrecision = "float32",
    device: str | torch.device | None = None,
    batch_size: int | None = None,
    n_bins: int = 15,
    n_bootstrap: int = 200,
    seed: int = 0,
    loaders: int | None = None,
    verbose: bool = True,
    on_cell: Callable[[CellDone], None] | None = None,
    dtype: torch.dtype | None = None,
) -> RobustnessResult:
    """Evaluate on clean data and on each cell of corrupted data.

    Args:
        model: an `Ensemble`, or any callable from a batch of inputs to members' logits or probabilities `[M, B, C]`
            (or `[B, C]` of one network); modules are put into evaluation mode.
        clean: uint8 images `[N, H, W, C]` or `[N, H, W]`, and labels `[N]`.
        corrupted: cells, from `generated_cells`, `cells_from` or your own.
        folder: keeps the members' predictions, one file per cell (16 bits per probability). An evaluation that was
            interrupted continues; a file that was made by another model, transform or data is made anew.
        transform: uint8 images on the device → the network's inputs; default the ensemble's own normalisation, or
            `normalise()` where it is not known: `[B, C, H, W]` in [0, 1]. One that gives other numbers than the
            ensemble was trained on is refused.
        outputs: whether the callable returns `"logits"` or `"probs"`.
        model_id: names a callable that is no module, where a folder is given.
        precision: `"float32"` (whatever the networks' dtype is), or `"bf16"` or `"float16"`: networks run
            under autocast and channels last, an ensemble's with BatchNorm folded and, on a GPU in bf16, convolution
            and ReLU as one operation; metrics stay in float64.
        device: default the model's, or the CPU for a plain function.
        batch_size: default 512 on a CPU, 2500 elsewhere.
        n_bootstrap: resamples of images for the standard errors.
        seed: of the resamples.
        loaders: threads that load cells ahead; default 1 on a CPU, up to 8 elsewhere.
        verbose: a bar on a terminal with rich installed, or in a notebook.
        on_cell: called after each cell; an exception it raises stops the evaluation, and finished cells are kept.
        dtype: the old way to give the precision; `torch.bfloat16` is `precision="bf16"`.

    >>> import numpy as np, forde
    >>> from forde.evaluation import generated_cells
    >>> images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 2, 0])
    >>> ensemble = forde.Ensemble(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)), 2)
    >>> cells = generated_cells(images, labels, ["fog", "contrast"], [1, 5])
    >>> result = evaluate_robustness(ensemble, (images, labels), cells)
    >>> sorted(result.types), 0 <= result.pooled["ece"].value <= result.cell_average["ece"].value
    (['contrast', 'fog'], True)
    """
    named = named_precision(precision, dtype)
    autocast = DTYPES[named]
    where = device_of(model, device)
    cells = [clean_cell(*clean), *corrupted]
    unique_names(cells)
    store = None if folder is None else Path(folder)
    on_cpu = where.type == "cpu"
    size = batch_size or (512 if on_cpu else 2500)
    threads = loaders or (1 if on_cpu else min(8, os.cpu_count() or 1))
    prepare = _transform(model, transform, clean[0], where)
    # How inputs are made is part of what is saved; a function has no content to hash, but its results have.
    probe = "" if store is None else prepare(as_tensor(clean[0][:8]).to(where)).float()
    # The dtype and not the precision's name: files from before it had one are still found.
    run = "" if store is None else fingerprint(model_fingerprint(model, model_id), probe, outputs, str(autocast))
    draws = resampler("bootstrap", n_bootstrap, seed, float64_device(where))
    sums: dict[tuple[str, int], Tensor] = {}
    contents: dict[str, str] = {}
    shape: tuple[int, ...] = ()
    writes: list[Future[None]] = []
    with (
        predicting(model, transform=prepare, outputs=outputs, dtype=autocast, device=where) as outputs_of,
        progress_bar(len(cells), "evaluating", show=verbose) as advance,
        ThreadPoolExecutor(1) as writer,  # leaving it waits for what is still to be written
        closing(ahead(lambda cell: ready_cell(cell, store, run, where), cells, threads)) as loaded,
    ):
        for done, (cell, ready) in enumerate(zip(cells, loaded, strict=True), start=1):
            contents[cell.name] = ready.content
            saved = ready.saved
            if saved is None:
                saved = predict_cell(
                    outputs_of, ready.images, ready.labels, outputs=outputs, batch_size=size, device=where
                )
                if store is not None:
                    writes.append(writer.submit(write_cell, path_of(store, cell.name), saved, ready.content))
            sums[cell.corruption, cell.severity] = resampled_sums(saved, draws, n_bins, where)
            if len(writes) > 2:
                writes.pop(0).result()  # tells of a full disk now, and not after the last cell
            shape = tuple(saved.codes.shape)
            numbers = {name: float(value) for name, value in scores(sums[cell.corruption, cell.severity][0]).items()}
            advance(f"{cell.name} accuracy {numbers['accuracy']:.3f}")
            if on_cell is not None:
                on_cell(CellDone(cell.name, done, len(cells), numbers, ready.saved is not None))
        for write in writes:
            write.result()
    settings = {
        "n_members": shape[0], "n_classes": shape[-1], "precision": named,
        "n_bins": n_bins, "n_bootstrap": n_bootstrap, "seed": seed, "cells": contents,
    }  # fmt: skip
    result = summarise(sums, settings)
    if store is not None:
        result.save(store / MANIFEST)
    return result


def _transform(model: Model, given: Transform | None, images: Images, where: torch.device) -> Transform:
    """What makes inputs of bytes: as the ensemble was trained, if that is known."""
    known = model.inputs if isinstance(model, Ensemble) else None
    own = known.normalised if known is not None and known.are_images else None
    if given is None:
        _refuse_channels_first(tuple(images.shape))
        return own or normalise()
    if own is not None:
        some = as_tensor(images[:8]).to(where)
        inputs, expected = given(some), own(some)
        if inputs.shape != expected.shape or not torch.allclose(inputs.float(), expected, atol=1e-3):
            raise FordeError(
                "transform gives other inputs than those that the ensemble was trained on, whose normalisation it "
                "knows; leave transform out, or set ensemble.inputs = None if you mean it."
            )
        log.info("transform is used; the normalisation that the ensemble knows gives the same inputs")
    return given


def _refuse_channels_first(shape: tuple[int, ...]) -> None:
    """Stop where the default transform would take rows of pixels for channels.

    >>> _refuse_channels_first((4, 8, 8, 3))
    """
    if len(shape) == 4 and shape[1] in CHANNELS and shape[-1] not in CHANNELS:
        raise FordeError(
            f"the images have shape {list(shape)}, but bytes of shape [N, H, W, C] were expected; give "
            "images.permute(0, 2, 3, 1), or transform=lambda images: images if they are inputs of the network already."
        )
