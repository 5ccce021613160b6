"""What the verdict says of one run, and of a difference, on clean data and elsewhere, each by itself."""

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
    scores = {metric: SimpleNamespace(value=number, error=0.03) for metric, number in value.items()}
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


def changed(one: Any, **values: float) -> Any:
    """The run with other scores under corruption."""
    one.scores.result.cell_average = one.scores.result.clean | {
        name: SimpleNamespace(value=value, error=0.03) for name, value in values.items()
    }
    return one


@pytest.mark.parametrize(
    ("corrupted", "said"),
    [
        (0.7, "its NLL rises from 0.500 to 0.700"),
        (0.3, "its NLL falls from 0.500 to 0.300"),
        (0.5, "NLL stays at 0.500"),
    ],
)
def test_which_way_the_nll_goes(corrupted: float, said: str) -> None:
    assert said in verdict([changed(run("a", 0.5), nll=corrupted)], {})[0]


def test_a_run_that_says_less_than_equal_probabilities() -> None:
    worse, better = run("a", 0.8), run("a", 0.6)
    for one in (worse, better):
        one.scores.data["classes"] = ["cat", "dog"]
    assert (
        "0.800, which is worse than the same probability for each of the 2 classes (0.693)" in verdict([worse], {})[0]
    )
    assert "worse" not in verdict([better], {})[0]


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        (0.91, "probabilities are honest under"),
        (0.95, "honest as far as 100 samples can tell"),
        (0.85, "honest as far as 100 samples can tell"),
        (0.97, "too sure"),
        (0.83, "not sure enough"),
    ],
)
def test_confidence_within_the_noise_of_the_samples_is_not_blamed(confidence: float, said: str) -> None:
    assert said in verdict([changed(run("a", 0.5), confidence=confidence)], {})[2]


@pytest.mark.parametrize(
    ("samples", "held", "said"),
    [
        (100, 0.98, "honest as far as 100 rows can tell"),  # 1.4 standard errors of honest intervals
        (20, 1.0, "honest as far as 20 rows can tell"),  # where the bootstrap finds no error at all
        (1000, 0.98, "too wide"),
        (1000, 0.93, "too narrow"),
    ],
)
def test_intervals_within_the_noise_of_the_rows_are_not_blamed(samples: int, held: float, said: str) -> None:
    value = {"rmse": 1.0, "nll": 1.0, "coverage_95": held}
    clean = {metric: SimpleNamespace(value=number, error=0.0) for metric, number in value.items()}
    result = SimpleNamespace(clean=clean, cells={}, severities={})
    scores = SimpleNamespace(result=result, task="regression", data={"samples": samples, "name": "mine"}, foreign=None)
    one = SimpleNamespace(name="a", scores=scores, of_rows=True, corrupted_keys=[])
    assert said in verdict([one], {})[2]  # type: ignore[list-item]
