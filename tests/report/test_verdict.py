"""What the verdict says of a difference, on clean data and elsewhere, each by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forde.evaluation.robustness.comparison import Difference
from forde.evaluation.runs.predictions import CLEAN_KEY
from forde.metrics.statistics import MEANS
from forde.report.page.verdict import verdict


def run(name: str, nll: float, wrong: int = 10) -> Any:
    """A run on 100 images, of which so many are labelled wrongly, the most uncertain ones."""
    terms = torch.zeros(100, len(MEANS))
    terms[:, MEANS.index("total")] = torch.linspace(0, 1, 100)
    terms[:, MEANS.index("accuracy")] = (torch.arange(100) < 100 - wrong).float()
    value = {"nll": nll, "accuracy": 1 - wrong / 100, "confidence": 1 - wrong / 100}
    scores = {metric: SimpleNamespace(value=number) for metric, number in value.items()}
    result = SimpleNamespace(clean=scores, cell_average=scores, cells={"fog": {3: scores}}, severities={3: scores})
    data = {"samples": 100, "name": "mine"}
    found = SimpleNamespace(result=result, task="classification", data=data, foreign=None)
    return SimpleNamespace(
        name=name, scores=found, of_rows=False, corrupted_keys=[("fog", 3)], terms={CLEAN_KEY: terms}
    )


def difference(value: float, error: float) -> Difference:
    return Difference(value, error, value - 2 * error, value + 2 * error, 0.004)


@pytest.mark.parametrize(("corrupted", "clean"), [(-0.05, 0.02), (0.05, -0.02), (-0.05, -0.002), (0.0, 0.0)])
def test_clean_and_corrupted_data_are_judged_apart(corrupted: float, clean: float) -> None:
    first, second = run("first", 0.5), run("second", 0.4)
    found = SimpleNamespace(cell_average={"nll": difference(corrupted, 0.01)}, clean={"nll": difference(clean, 0.005)})
    said = verdict([first, second], {"second": found})[1]  # type: ignore[dict-item]
    for part, value, error in zip(said.split("; on clean data"), (corrupted, clean), (0.01, 0.005), strict=True):
        if abs(value) > 2 * error:
            assert f"so that {'second' if value < 0 else 'first'} is better on these test samples" in part
        else:
            assert "within the noise of these test samples" in part and "is better on" not in part


def test_what_a_human_gains() -> None:
    assert "lowers the error from 10.0 % to 0.0 %" in verdict([run("a", 0.5)], {})[2]
    said = verdict([run("a", 0.5, wrong=0)], {})[2]
    assert "of clean samples none is labelled wrongly" in said and "lowers" not in said
