"""What is taken of several trials, and what is said about it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forde.errors import FordeError
from forde.tuning.choosing import Candidate, choose, explained, paired, to_dict
from forde.tuning.space import parsed_space

N = 300
PLACE = st.floats(-0.5, 0.5)


def trial(number: int, clean: float, corrupted: float, *, noise: float = 0.0, seeds: int = 1) -> Candidate:
    draw = np.random.default_rng(number)
    values = {"strength": float(number), "alpha": 0.5} if number else {}
    spread = noise * draw.standard_normal((seeds, N))
    spread -= spread.mean()
    return Candidate(number, values, 1 + clean + spread, 2 + corrupted + spread)


def test_error_is_that_of_a_paired_bootstrap() -> None:
    draw = np.random.default_rng(0)
    common = draw.gamma(2, size=N)  # what is hard for one is hard for the other
    a, b = common + 0.3 * draw.standard_normal(N), common + 0.3 * draw.standard_normal(N)
    weights = draw.multinomial(N, np.full(N, 1 / N), size=4000) / N
    resampled = weights @ a - weights @ b
    found = paired(a[None], b[None])
    assert found.value == pytest.approx((a - b).mean()) and found.error == pytest.approx(resampled.std(), rel=0.05)
    assert found.error < 0.5 * (a.var() / N + b.var() / N) ** 0.5


def test_seeds_that_differ_make_the_error_larger() -> None:
    rows = np.repeat(np.array([[0.0], [0.2], [0.4]]), N, axis=1)
    found = paired(rows, np.zeros_like(rows))
    assert found.value == pytest.approx(0.2) and found.error == pytest.approx(0.2 / 3**0.5)


@given(st.lists(st.tuples(PLACE, PLACE), min_size=1, max_size=8), st.floats(0, 0.3))
def test_choice_is_allowed_and_nothing_allowed_is_better(places: list[tuple[float, float]], budget: float) -> None:
    trials = [trial(0, 0.0, 0.0), *(trial(number, *place) for number, place in enumerate(places, start=1))]
    choice = choose(trials, budget)
    chosen = choice.chosen
    assert chosen.is_baseline or choice.clean[chosen.number].value <= budget
    for one in trials:
        if one.is_baseline or one.clean.mean() - trials[0].clean.mean() <= budget:
            assert chosen.corrupted.mean() <= one.corrupted.mean()
    dominated = {
        a.number for a in trials for b in trials
        if b.clean.mean() <= a.clean.mean() and b.corrupted.mean() < a.corrupted.mean()
    }  # fmt: skip
    assert not dominated & {*choice.frontier}
    assert {round(trials[n].corrupted.mean(), 9) for n in choice.frontier} >= {
        round(min(one.corrupted.mean() for one in trials), 9)
    }


class TestWords:
    def test_a_small_difference_is_called_noise(self) -> None:
        choice = choose([trial(0, 0, 0), trial(1, 0.001, -0.001, noise=0.1)], 0.01)
        assert choice.chosen.number == 1
        assert "is within noise: the deep ensemble may be as good" in explained(choice, ["strength", "alpha"])

    def test_a_large_one_is_not(self) -> None:
        choice = choose([trial(0, 0, 0), trial(1, 0.001, -0.3, noise=0.1), trial(2, 0, -0.2999, noise=0.1)], 0.01)
        said = explained(choice, ["strength", "alpha"])
        assert choice.chosen.number == 1 and choice.alike == [2]
        assert "may be as good" not in said and "Within noise of it under perturbations, and allowed: trial 2." in said
        assert "another seed may change more" in said

    def test_what_is_too_dear_is_left(self) -> None:
        choice = choose([trial(0, 0, 0), trial(1, 0.02, -0.5)], 0.01)
        assert choice.chosen.is_baseline and not choice.is_allowed(1) and choice.frontier == [0, 1]
        assert "is chosen, the deep ensemble" in explained(choice, ["strength"])
        assert [one["allowed"] for one in to_dict(choice, [choice.baseline, trial(1, 0.02, -0.5)])["trials"]] == [
            True,
            False,
        ]

    def test_gains_of_another_learning_rate_are_not_those_of_repulsion(self) -> None:
        choice = choose([trial(0, 0, 0, seeds=2), trial(1, 0, -0.5, seeds=2)], 0.01)
        said = explained(choice, ["strength", "lr"])
        assert "trained with the given lr" in said and "and 2 seeds, paired." in said


def test_without_the_deep_ensemble_nothing_is_chosen() -> None:
    with pytest.raises(FordeError, match="nothing to compare with"):
        choose([trial(1, 0, 0)], 0.01)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("strenght", "did you mean 'strength'"), ("alpha", "does not search the strength"),
        ("strength=3:1", "a range of positive numbers as in strength=0.3:100"), ("strength=a:b", "was expected"),
        ("strength,alpha=0:2", "a range from 0 to 1"),
    ],
)  # fmt: skip
def test_a_search_that_cannot_be(text: str, complaint: str) -> None:
    with pytest.raises(FordeError, match=complaint):
        parsed_space(text, 0.1)
