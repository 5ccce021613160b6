"""Rows that are weighted: what a weight means, for likelihoods with a loss for each sample and on every engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tasks import HARD, MANY, ROWS, SOFT, YES, Single, normal, perceptron
from torch import Tensor, nn

import forde
from forde import FordeError
from forde.engine import EngineName, inspect_step
from forde.kernels import RBF
from forde.likelihoods import (
    Binary,
    Classification,
    DenseClassification,
    LearnedNoiseRegression,
    Likelihood,
    MultiLabel,
    Regression,
    Weighted,
)
from forde.methods import Method
from forde.spaces import InputGradients
from forde.step import Step, inspect
from steps import compiled, compiled_stack, is_plain, loop, stack

M = 3
EACH = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 0.0], [3.0, 1.0, 0.5], [0.0, 1.0, 1.5]]).repeat(2, 1)
"""Weights of 8 rows for each member; those of the second are 1."""

KINDS: dict[str, tuple[Likelihood, Callable[[], nn.Module], Tensor]] = {
    "labels": (Classification(label_smoothing=0.1), perceptron(3), HARD),
    "soft labels": (Classification(), perceptron(3), SOFT),
    "binary": (Binary(pos_weight=2.0), Single, YES),
    "multi-label": (MultiLabel(), perceptron(3), MANY),
    "targets [B]": (Regression(noise=0.5), perceptron(1), normal(8, seed=1)),
    "targets [B, K]": (LearnedNoiseRegression(), perceptron(4), normal(8, 2, seed=1)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def ensemble_of(kind: str, likelihood: Likelihood) -> forde.Ensemble:
    return forde.Ensemble(KINDS[kind][1], M, seed=0, likelihood=likelihood).double().train()


def weighted(kind: str, weights: Tensor) -> tuple[forde.Ensemble, Tensor]:
    likelihood, y = Weighted.pack(KINDS[kind][0], KINDS[kind][2], weights)
    return ensemble_of(kind, likelihood), y


@pytest.mark.parametrize(("kind", "engine"), [*((kind, "eager") for kind in KINDS), ("labels", "vectorized")])
def test_a_weight_counts_how_often_a_member_sees_the_row(kind: str, engine: EngineName) -> None:
    """Losses and their gradients are those of each member alone on its rows, repeated as often as they weigh."""
    ensemble, y = weighted(kind, 2 * EACH)
    found = inspect_step(ensemble, forde.method("deep-ensemble"), ROWS, y, engine=engine)
    plain, targets = KINDS[kind][0], KINDS[kind][2]
    for i in range(M):
        rows = torch.arange(8).repeat_interleave((2 * EACH[:, i]).long())
        own = inspect_step(ensemble_of(kind, plain), forde.method("deep-ensemble"), ROWS[rows], targets[rows])
        share = len(rows) / 8
        torch.testing.assert_close(found.losses[i], share * own.losses[i])
        for name, gradient in own.of_objective[i].items():
            torch.testing.assert_close(found.of_objective[i][name], share * gradient)


@every_kind
def test_rows_of_weight_1_are_plain_rows(kind: str) -> None:
    """Also in what members are compared by and how they repel."""
    likelihood, _, targets = KINDS[kind]
    method = Method(space=InputGradients(), kernel=RBF(), repulsion_scale=0.5)
    plain = inspect_step(ensemble_of(kind, likelihood), method, ROWS, targets)
    for weights in (torch.ones(8), torch.ones(8, M)):
        ensemble, y = weighted(kind, weights)
        found = inspect_step(ensemble, method, ROWS, y)
        torch.testing.assert_close([found.losses, found.z], [plain.losses, plain.z])
        torch.testing.assert_close(found.total, plain.total)


COMPILED_LOOP = partial(compiled, fuse=False)


@pytest.mark.parametrize("make", [stack, COMPILED_LOOP, partial(compiled_stack, fuse=False)])
def test_engines_agree_on_weights_of_each_member(make: Callable[..., Step]) -> None:
    method = Method(space=InputGradients("ce"), kernel=RBF(), repulsion_scale=0.5)
    found = []
    for way in (loop, make):
        ensemble, y = weighted("labels", EACH)
        step = way(ensemble, method)
        found.append(inspect(step, ROWS, y).total)
        # A loop compiles one member's code for all, sees that weights differ, and says that it goes on as it was.
        assert is_plain(step) == (make is COMPILED_LOOP and way is make)
    torch.testing.assert_close(*found)


def test_a_scalar_of_the_users_own_sees_plain_targets() -> None:
    def scalar(output: Tensor, y: Tensor) -> Tensor:
        assert y.dtype == torch.long and y.shape == (8,)
        return output.gather(1, y[:, None])[:, 0]

    found = []
    for output in (scalar, "logit"):
        ensemble, y = weighted("labels", EACH)
        found.append(inspect_step(ensemble, Method(space=InputGradients(output), kernel=RBF()), ROWS, y).total)
    torch.testing.assert_close(*found)


def test_fit_trains_with_weights() -> None:
    """A member that sees one class only believes in it, whatever the others see."""
    weights = torch.stack([(label == HARD).double() for label in range(3)], 1)
    ensemble, y = weighted("labels", weights)
    history = forde.fit(ensemble, "forde-identity", (ROWS, y), epochs=60, batch_size=4, lr=0.1)
    assert len(history["disagreement"]) == 60
    chosen = ensemble.predict(ROWS).member_probs.mean(1).argmax(-1)
    assert chosen.tolist() == [0, 1, 2]


def test_wrong_weights_are_refused() -> None:
    for wrong, message in (
        (torch.ones(7), "shape \\[7\\] for 8 targets"),
        (-torch.ones(8), "negative"),
        (torch.full((8,), torch.nan), "negative, NaN"),
    ):
        with pytest.raises(FordeError, match=message):
            Weighted.pack(Classification(), HARD, wrong)
    ensemble, y = weighted("labels", torch.ones(8, 2))
    with pytest.raises(FordeError, match="weights for 2 members, but member 2"):
        inspect_step(ensemble, forde.method("deep-ensemble"), ROWS, y)
    likelihood, y = Weighted.pack(Classification(class_weights=[1.0, 1.0, 2.0]), HARD, torch.ones(8))
    with pytest.raises(FordeError, match="put both into the weights"):
        inspect_step(ensemble_of("labels", likelihood), forde.method("deep-ensemble"), ROWS, y)
    likelihood, y = Weighted.pack(DenseClassification(), torch.zeros(8, 2, dtype=torch.long), torch.ones(8))
    with pytest.raises(FordeError, match="no loss for each sample"):
        likelihood.likelihood.losses(torch.zeros(8, 3, 2), y)
