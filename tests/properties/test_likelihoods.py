"""Losses against torch.distributions: the mean over the batch of −log p(y|x), of all targets together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal
from torch.nn import functional as F

from forde.likelihoods import (
    Classification,
    Custom,
    LearnedNoiseRegression,
    Likelihood,
    Regression,
    likelihood_from_config,
)

M, B, K, C = 3, 5, 2, 4


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def learned(output: Tensor) -> Independent:
    """K means, then K raw variances."""
    means, raw = output[..., :K], output[..., K:]
    return Independent(Normal(means, (F.softplus(raw) + 1e-6).sqrt()), 1)


def known(output: Tensor) -> Independent:
    return Independent(Normal(output, 0.3), 1)


def classes(output: Tensor) -> Categorical:
    return Categorical(logits=output)


CASES = {
    "classification": (Classification(), classes, normal(M, B, C), torch.tensor([0, 3, 1, 1, 2])),
    "known noise": (Regression(noise=0.3), known, normal(M, B, K), normal(B, K, seed=1)),
    "learned noise": (LearnedNoiseRegression(), learned, normal(M, B, 2 * K), normal(B, K, seed=1)),
}
every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_loss_is_the_mean_negative_log_density(case: str) -> None:
    likelihood, distribution, outputs, y = CASES[case]
    torch.testing.assert_close(likelihood.loss(outputs[0], y), -distribution(outputs[0]).log_prob(y).mean())


@every_case
def test_stacked_members_have_each_its_own_loss(case: str) -> None:
    likelihood, distribution, outputs, y = CASES[case]
    torch.testing.assert_close(likelihood.loss(outputs, y), -distribution(outputs).log_prob(y).mean(-1))


@pytest.mark.parametrize("case", ["known noise", "learned noise"])
def test_several_targets_weigh_as_much_as_each_by_itself(case: str) -> None:
    """Targets are independent given the network, so their losses add up: the prior weighs the same for any K."""
    likelihood, _, outputs, y = CASES[case]
    per_target = outputs[0].unflatten(-1, (-1, K))  # [B, outputs per target, K]
    alone = sum(likelihood.loss(per_target[..., k], y[:, k]) for k in range(K))
    torch.testing.assert_close(likelihood.loss(outputs[0], y), alone)


@every_case
def test_each_sample_is_compared_with_its_own_target(case: str) -> None:
    """Outputs that say the targets have a small loss, and the same outputs in another order a larger one."""
    likelihood, _, outputs, y = CASES[case]
    if case == "classification":
        near = 9.0 * F.one_hot(y, C).double()
    else:
        near = torch.cat([y, torch.zeros(B, outputs.shape[-1] - K, dtype=y.dtype)], -1)
    order = torch.tensor([2, 0, 3, 4, 1])
    assert likelihood.loss(near, y) < likelihood.loss(near[order], y) and likelihood.loss(near, y) < 2


def test_learned_noise_predicts_what_it_was_fitted_by() -> None:
    """The mean and variance that a prediction states are those of the density in the loss."""
    likelihood, _, outputs, y = CASES["learned noise"]
    prediction = likelihood.prediction(outputs)
    torch.testing.assert_close(prediction.member_means, learned(outputs).mean)
    torch.testing.assert_close(prediction.member_variances, learned(outputs).variance)
    torch.testing.assert_close(likelihood.scalar(outputs, y), learned(outputs).mean.sum(-1))


def test_a_certain_member_has_a_finite_loss() -> None:
    """softplus(−800) is 0; the floor keeps the variance positive."""
    output = torch.tensor([[0.0, -800.0]])
    loss = LearnedNoiseRegression().loss(output, torch.zeros(1))
    torch.testing.assert_close(loss, -Normal(0.0, 1e-3).log_prob(torch.zeros(())), rtol=1e-5, atol=0)


def test_known_noise_is_a_standard_deviation_in_loss_and_prediction() -> None:
    prediction = Regression(noise=0.3).prediction(torch.zeros(M, B, 1))
    torch.testing.assert_close(prediction.std, torch.full((B,), 0.3))


def test_own_loss_per_sample_is_averaged() -> None:
    """One value per sample and their mean are the same loss."""
    output, y = normal(B, 1), normal(B, seed=1)
    each = Custom(lambda o, t: (o.squeeze(-1) - t).square())
    mean = Custom(lambda o, t: F.mse_loss(o.squeeze(-1), t))
    torch.testing.assert_close(each.loss(output, y), mean.loss(output, y))


def test_scalars_of_classification_are_those_of_the_label() -> None:
    likelihood, _, outputs, y = CASES["classification"]
    for m in range(M):
        for b in range(B):
            assert likelihood.scalar(outputs, y)[m, b] == outputs[m, b, y[b]]
    torch.testing.assert_close(likelihood.log_prob(outputs, y), Categorical(logits=outputs).log_prob(y))


@pytest.mark.parametrize("likelihood", [Classification(), Regression(noise=0.25), LearnedNoiseRegression()])
def test_settings_come_back(likelihood: Likelihood) -> None:
    assert likelihood_from_config(likelihood.config()) == likelihood
