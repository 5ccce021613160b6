"""From images to predictions and their scores, batch by batch, without waiting for the device in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from forde.data.inputs import Transform
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.evaluation.outputs import OutputKind, member_log_probs, problem_with
from forde.evaluation.robustness.cells import Images, as_tensor
from forde.evaluation.robustness.devices import float64_device
from forde.evaluation.robustness.quantisation import encode
from forde.evaluation.robustness.saved_cells import SavedCell
from forde.forward import in_evaluation
from forde.inference import running
from forde.metrics.statistics import sample_terms

Model = Callable[[Tensor], Any]


@contextmanager
def predicting(
    model: Model,
    *,
    transform: Transform,
    outputs: OutputKind,
    dtype: torch.dtype | None,
    device: torch.device,
) -> Iterator[Model]:
    """Yields uint8 images `[B, ...]` on the device → the model's outputs; in evaluation mode, without gradients.

    With a dtype of 16 bits networks run under autocast in channels_last, and an ensemble's are made faster first.
    """
    if isinstance(model, Ensemble) and (outputs != "logits" or not model.likelihood.takes_labels):
        raise FordeError(
            f"the ensemble's likelihood is {type(model.likelihood).__name__} and outputs={outputs!r}, but robustness "
            "is evaluated for classification ensembles, which return logits."
        )
    if isinstance(model, Ensemble):
        with running(list(model.members), dtype) as outputs_of:
            yield torch.no_grad()(lambda images: outputs_of(model.to_members(model.as_input(transform(images)))))
        return
    with in_evaluation(model) if isinstance(model, nn.Module) else nullcontext():
        yield torch.no_grad()(lambda images: _under_autocast(model, transform(images), dtype, device))


def _under_autocast(model: Model, x: Tensor, dtype: torch.dtype | None, device: torch.device) -> Any:
    # Few shapes and many batches: worth letting cuDNN try its algorithms once.
    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, cudnn.benchmark or dtype is not None
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            layout = torch.channels_last if dtype is not None and x.dim() == 4 else torch.contiguous_format
            return model(x.contiguous(memory_format=layout))
    finally:
        cudnn.benchmark = before


def predict_cell(
    outputs_of: Model, images: Images, labels: Tensor, *, outputs: OutputKind, batch_size: int, device: torch.device
) -> SavedCell:
    """Predictions for all images `[N, ...]` and their scores, kept on the device; waits for it once, at the end."""
    exact = float64_device(device)
    y = labels.to(exact)
    codes: list[Tensor] = []
    terms: list[Tensor] = []
    problems: list[Tensor] = []
    for start in range(0, len(images), batch_size):
        batch = as_tensor(images[start : start + batch_size]).to(device, non_blocking=True)
        raw = torch.as_tensor(outputs_of(batch))
        if raw.shape[-2:-1] != batch.shape[:1]:
            raise FordeError(
                f"the model returned shape {list(raw.shape)} for {len(batch)} images, but [members, batch, classes] or "
                "[batch, classes] was expected."
            )
        if start == 0:
            _check_labels(labels, raw.shape[-1])
        values = raw.to(exact).double()
        log_probs = member_log_probs(values, outputs)
        codes.append(encode(log_probs))
        terms.append(sample_terms(log_probs, y[start : start + batch_size]))
        problems.append(problem_with(values, outputs))
    if not codes:
        raise FordeError("there are no images to evaluate; give at least one.")
    if bool(torch.stack(problems).any()):
        raise FordeError(
            "the model returned NaN or infinite outputs."
            if outputs == "logits"
            else "the model's outputs are not probabilities: negative, not finite or not summing to 1; "
            "pass outputs='logits' if they are logits."
        )
    return SavedCell(torch.cat(codes, dim=1), labels, torch.cat(terms))


def _check_labels(labels: Tensor, n_classes: int) -> None:
    if bool((labels < 0).any()) or bool((labels >= n_classes).any()):
        raise FordeError(
            f"labels are from {int(labels.min())} to {int(labels.max())}, but the model has {n_classes} classes, "
            f"0 to {n_classes - 1}."
        )
