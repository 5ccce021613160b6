"""Robustness evaluation on a GPU: the same numbers as on the CPU, and no waiting between batches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import forde
from forde.evaluation import evaluate_robustness, generated_cells, normalise
from forde.evaluation.outputs import member_log_probs, problem_with
from forde.evaluation.robustness.predicting import predicting
from forde.evaluation.robustness.quantisation import encode
from forde.metrics.statistics import sample_terms

pytestmark = pytest.mark.cuda
N = 64


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(256, size=(N, 32, 32, 3), dtype=np.uint8), rng.integers(10, size=N)


@pytest.fixture
def ensemble() -> forde.Ensemble:
    return forde.Ensemble(lambda: forde.models.wrn16_4(10), 3)


def test_numbers_are_those_of_the_cpu(ensemble: forde.Ensemble, data: Any) -> None:
    cells = generated_cells(*data, ["contrast", "brightness"], [1, 5])
    options: dict[str, Any] = {"verbose": False, "transform": normalise(0.5, 0.25)}
    expected = evaluate_robustness(ensemble, data, cells, **options)
    ensemble.cuda()
    exact = evaluate_robustness(ensemble, data, cells, **options)
    fast = evaluate_robustness(ensemble, data, cells, precision="bf16", **options)
    assert exact.pooled["nll"].value == pytest.approx(expected.pooled["nll"].value, rel=1e-2)
    assert fast.pooled["nll"].value == pytest.approx(expected.pooled["nll"].value, rel=5e-2)
    on_device = generated_cells(torch.from_numpy(data[0]).cuda(), data[1], ["contrast", "brightness"], [1, 5])
    again = evaluate_robustness(ensemble, data, on_device, **options)
    assert again.pooled["nll"].value == pytest.approx(exact.pooled["nll"].value, rel=1e-2)


def test_a_batch_never_waits_for_the_device(ensemble: forde.Ensemble, data: Any) -> None:
    device = torch.device("cuda")
    images, labels = torch.from_numpy(data[0]).to(device), torch.from_numpy(data[1]).to(device)
    setup: dict[str, Any] = {"transform": normalise(0.5, 0.25), "outputs": "logits", "device": device}
    with predicting(ensemble.cuda(), dtype=torch.bfloat16, **setup) as outputs_of:

        def batch() -> tuple[Tensor, ...]:
            raw = outputs_of(images).double()
            log_probs = member_log_probs(raw, "logits")
            return encode(log_probs), sample_terms(log_probs, labels), problem_with(raw, "logits")

        for _ in range(2):  # constants are copied, algorithms chosen and the graph captured once
            batch()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the mode a prototype, once
                torch.cuda.set_sync_debug_mode("error")
            codes, terms, problem = batch()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert codes.shape[1] == len(terms) == N
    assert not bool(problem)
