"""METHODS 7: the EmpCov prior."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import forde
from forde.priors import EmpCov, Isotropic, Prior, TrainingData
from forde.priors.empcov import layer_covariance


def training_data(x: Tensor) -> TrainingData:
    return TrainingData(lambda: iter(x.split(5)), len(x))


def images() -> Tensor:
    """Distinct variances per channel, so that a wrong layout shows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, 5, 5, dtype=torch.float64, generator=generator)
    return x * torch.tensor([1.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1) + 0.5


def gradient(prior: EmpCov | Isotropic, network: nn.Module) -> dict[str, Tensor]:
    parameters = dict(network.named_parameters())
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    prior.add_gradients(parameters)
    return {name: p.grad.clone() for name, p in parameters.items()}


def test_identity_covariance_is_weight_decay() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    empcov = EmpCov(0.1, fitted_layer="0", precision=torch.eye(3, dtype=torch.float64))
    found, expected = gradient(empcov, network), gradient(Isotropic(0.1), network)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize("extra", [False, True])
def test_gradient_is_that_of_the_quadratic(extra: bool) -> None:
    x = torch.randn(50, 3, dtype=torch.float64) * torch.tensor([3.0, 1.0, 0.3])
    network = nn.Sequential(nn.Linear(3, 4)).double()
    prior = EmpCov(0.1, extra_isotropic=extra).prepare(network, training_data(x))
    found = gradient(prior, network)["0.weight"]

    def energy(w: Tensor) -> Tensor:
        return 0.05 * ((w @ prior.precision * w).sum() + extra * w.square().sum())

    W, step = network[0].weight.detach(), 1e-6
    for index in [(0, 0), (2, 1), (3, 2)]:
        moved = torch.zeros_like(W)
        moved[index] = step
        numeric = (energy(W + moved) - energy(W - moved)) / (2 * step)
        torch.testing.assert_close(found[index], numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("padding", "stride", "dilation"), [(0, 1, 1), (1, 1, 1), (1, 2, 1), (2, 1, 2)])
def test_patch_covariance_against_a_loop_over_windows(padding: int, stride: int, dilation: int) -> None:
    x = images()
    layer = nn.Conv2d(2, 4, 3, padding=padding, stride=stride, dilation=dilation)
    padded = nn.functional.pad(x, [padding] * 4)
    reach = 2 * dilation + 1
    rows = [
        image[:, r : r + reach : dilation, c : c + reach : dilation].reshape(-1)
        for image in padded
        for r in range(0, padded.shape[2] - reach + 1, stride)
        for c in range(0, padded.shape[3] - reach + 1, stride)
    ]
    expected = torch.cov(torch.stack(rows).T, correction=0)
    torch.testing.assert_close(layer_covariance(layer, training_data(x)), expected)


def test_one_dimensional_convolution() -> None:
    x = torch.randn(6, 2, 9, dtype=torch.float64)
    rows = [signal[:, c : c + 3].reshape(-1) for signal in x for c in range(7)]
    expected = torch.cov(torch.stack(rows).T, correction=0)
    torch.testing.assert_close(layer_covariance(nn.Conv1d(2, 4, 3), training_data(x)), expected)


def test_layout_matches_the_weight() -> None:
    """Constant second channel: only filters' weights on it are held back hard."""
    x = images()
    x[:, 1] = 0.5
    network = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False)).double()
    nn.init.ones_(network[0].weight)
    prior = EmpCov(0.1, epsilon=1e-2).prepare(network, training_data(x))
    pull = gradient(prior, network)["0.weight"].abs()
    assert pull[:, 1].min() > 5 * pull[:, 0].max()


def test_penalty_is_larger_along_low_variance_directions() -> None:
    x = torch.randn(500, 4, dtype=torch.float64) * torch.tensor([4.0, 2.0, 1.0, 0.1])
    network = nn.Sequential(nn.Linear(4, 2)).double()
    prior = EmpCov(0.1).prepare(network, training_data(x))
    variances, vectors = torch.linalg.eigh(layer_covariance(network[0], training_data(x)))
    penalties = torch.einsum("di,de,ei->i", vectors, prior.precision, vectors)
    assert bool((penalties.diff() < 0).all()) and bool((variances.diff() > 0).all())


def test_only_the_first_layer_changes() -> None:
    network = forde.models.MLP(4, [5, 5], 3).double()
    x = torch.randn(50, 4, dtype=torch.float64)
    found = gradient(EmpCov(0.1).prepare(network, training_data(x)), network)
    expected = gradient(Isotropic(0.1), network)
    changed = {name for name in expected if not torch.allclose(found[name], expected[name])}
    assert changed == {"body.0.weight"}


@pytest.mark.parametrize("normalise", [False, True])
def test_precision_is_symmetric_positive_definite(normalise: bool) -> None:
    """Also where a feature is constant and its variance zero."""
    x = torch.randn(30, 4, dtype=torch.float64)
    x[:, 0] = 2.0
    prior = EmpCov(normalise=normalise).prepare(nn.Sequential(nn.Linear(4, 2)), training_data(x))
    torch.testing.assert_close(prior.precision, prior.precision.T)
    assert torch.linalg.eigvalsh(prior.precision).min() > 0


def test_unstable_step_sizes_are_refused() -> None:
    x, y = torch.randn(64, 4), torch.arange(64) % 2
    x[:, 0] *= 1e-6
    ensemble = forde.Ensemble(lambda: forde.models.MLP(4, [5], 2), 2)
    method = forde.method("deep-ensemble", prior=EmpCov(epsilon=1e-9))
    with pytest.raises(forde.FordeError, match="SGD would diverge"):
        forde.fit(ensemble, method, (x, y), epochs=1, verbose=False)


def test_curvature_is_the_largest_eigenvalue_of_the_gradient() -> None:
    """The prior is quadratic: its gradient is linear in the weights, with this largest eigenvalue."""
    network = nn.Sequential(nn.Linear(4, 1, bias=False)).double()
    x = torch.randn(30, 4, dtype=torch.float64) * torch.tensor([0.1, 1.0, 2.0, 3.0], dtype=torch.float64)
    for prior in (EmpCov(0.2), EmpCov(0.2, extra_isotropic=True), EmpCov(0.2, normalise=True)):
        fitted = prior.prepare(network, training_data(x))
        columns = []
        for unit in torch.eye(4, dtype=torch.float64):
            with torch.no_grad():
                network[0].weight.copy_(unit)
            columns.append(gradient(fitted, network)["0.weight"].flatten())
        largest = torch.linalg.eigvalsh(torch.stack(columns))[-1]
        assert fitted.max_curvature == pytest.approx(float(largest), rel=1e-9)


class Stiff(Prior):
    """A user's own prior on weights."""

    on_weights = True
    max_curvature = 20.0

    def add_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        for parameter in parameters.values():
            parameter.grad += 20 * parameter.detach()


def test_unstable_step_sizes_of_an_own_prior_are_refused() -> None:
    x, y = torch.randn(32, 4), torch.arange(32) % 2
    method = forde.Method(prior=Stiff())

    def train(lr: float) -> forde.Ensemble:
        ensemble = forde.Ensemble(lambda: nn.Linear(4, 2), 1)
        forde.fit(ensemble, method, (x, y), epochs=20, batch_size=8, lr=lr, verbose=False, engine="eager")
        return ensemble

    with pytest.raises(forde.FordeError, match=r"Stiff prior.*would diverge"):
        train(0.07)
    assert max(float(p.detach().abs().max()) for p in train(0.06).parameters()) < 1


def test_first_layers_that_do_not_see_the_input_are_refused() -> None:
    network = nn.Sequential(nn.Linear(7, 2))
    with pytest.raises(forde.FordeError, match="see the raw input"):
        EmpCov().prepare(network, training_data(torch.randn(10, 4)))
    with pytest.raises(forde.FordeError, match="ungrouped"):
        EmpCov(layer="0").prepare(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)), training_data(images()))
    with pytest.raises(forde.FordeError, match="has none"):
        EmpCov().prepare(nn.Sequential(nn.ReLU()), training_data(images()))
