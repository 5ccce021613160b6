"""The contract that every registered method keeps, on an MLP and on a convolution with BatchNorm."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import CLASSES, METHODS, NETWORKS, PARTICLES, SAMPLES, make_data, make_ensemble, make_method
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.engine import inspect_step, make_engine
from forde.kernels import Fixed
from forde.priors import Cauchy, EmpCov, TrainingData
from forde.rules import WGD, Penalty
from steps import phase_1

every_method = pytest.mark.parametrize("case", METHODS)
every_particle_method = pytest.mark.parametrize("case", PARTICLES)
every_network = pytest.mark.parametrize("network", NETWORKS)

FIT = {"epochs": 2, "batch_size": 12, "lr": 0.05, "verbose": False, "engine": "eager"}


def state_of(ensemble: forde.Ensemble) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}


def equal_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def prepared(case: str, network: str, ensemble: forde.Ensemble, x: Tensor, **more: object) -> forde.Method:
    return make_method(case, **more).prepare(ensemble.members[0], TrainingData(lambda: iter([x]), len(x)))


@every_network
@every_method
def test_shapes_and_history(case: str, network: str) -> None:
    x, y = make_data(network)
    ensemble = make_ensemble(network)
    history = forde.fit(ensemble, make_method(case), (x, y), **FIT)
    prediction = ensemble.predict(x)
    assert prediction.probs.shape == (SAMPLES, CLASSES)
    assert prediction.member_probs.shape == (3, SAMPLES, CLASSES)
    for name in ("total", "aleatoric", "epistemic"):
        assert getattr(prediction, name).shape == (SAMPLES,)
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(SAMPLES))
    assert len(history) == 2
    for record in history:
        assert {"loss", "repulsion", "bandwidth", "disagreement", "gradient_cosine", "lr"} <= record.keys()
        assert record["loss"] > 0
        if case in PARTICLES:
            assert -1 <= record["gradient_cosine"] <= 1 and 0 <= record["disagreement"] <= 1


@every_network
@every_method
def test_seed_fixes_every_bit(case: str, network: str) -> None:
    data = make_data(network)

    def run(seed: int, order: int) -> dict[str, Tensor]:
        ensemble = make_ensemble(network, seed=seed)
        forde.fit(ensemble, make_method(case), data, seed=order, **FIT)
        return state_of(ensemble)

    first = run(0, 0)
    assert equal_bits(first, run(0, 0))
    assert not equal_bits(first, run(1, 0))
    assert not equal_bits(first, run(0, 1))


def plain_training(network: str, method: forde.Method, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """SGD as anyone would write it; priors on outputs or features are terms of the loss."""
    member = make_ensemble(network, 1).members[0]
    first, precision = "", None
    decay = 5e-4
    for prior in method.priors:
        if isinstance(prior, EmpCov):
            fitted = prior.prepare(member, TrainingData(lambda: iter([x]), len(x)))
            first, precision = f"{fitted.fitted_layer}.weight", fitted.precision
    parameters = dict(member.named_parameters())
    groups = [
        {"params": [p for name, p in parameters.items() if name != first], "weight_decay": decay},
        {"params": [parameters[first]] if first else [], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=FIT["lr"], momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(0)
    member.train()
    for epoch in range(FIT["epochs"]):
        for group in optimizer.param_groups:
            group["lr"] = FIT["lr"] * forde.training.schedule.paper_factor(epoch, FIT["epochs"])
        for chosen in torch.randperm(len(y), generator=generator).split(FIT["batch_size"]):
            features = member.features(x[chosen])
            logits = member.head(features)
            loss = F.cross_entropy(logits, y[chosen])
            for prior in method.priors:
                if isinstance(prior, Cauchy):
                    values = logits if prior.on == "outputs" else features
                    loss = loss + torch.log1p(prior.coefficient * values.square()).sum(-1).mean(-1)
            optimizer.zero_grad()
            loss.backward()
            if precision is not None:
                weight = parameters[first]
                pull = (weight.detach().flatten(1) @ precision.to(weight)).view_as(weight)
                weight.grad.add_(pull, alpha=decay)
            optimizer.step()
    return member.state_dict()


@every_network
@every_particle_method
def test_one_member_is_plain_training_bit_for_bit(case: str, network: str) -> None:
    data = make_data(network)
    ensemble = make_ensemble(network, 1)
    history = forde.fit(ensemble, make_method(case), data, **FIT)
    expected = plain_training(network, make_method(case), *data)
    assert equal_bits(dict(ensemble.members[0].state_dict()), expected)
    assert history["repulsion"] == [0.0, 0.0]


@every_network
@every_particle_method
def test_zero_repulsion_is_the_deep_ensemble_bit_for_bit(case: str, network: str) -> None:
    """The deep ensemble with the method's priors, and with its shared head where it has one."""
    data = make_data(network)
    method = make_method(case)
    reference = forde.method("deep-ensemble", prior=method.priors, shared_head=method.shared_head)
    states = []
    for chosen in (make_method(case, repulsion_weight=0.0), reference):
        ensemble = make_ensemble(network)
        forde.fit(ensemble, chosen, data, **FIT)
        states.append(state_of(ensemble))
    assert equal_bits(*states)


@every_network
@every_particle_method
def test_cheap_repulsion_at_its_defaults_is_the_plain_method(case: str, network: str) -> None:
    data = make_data(network)
    states = []
    fraction, weight = make_method(case).repulsion_fraction, make_method(case).repulsion_weight
    for options in (
        {},
        {"repulsion_every": 1, "repulsion_fraction": fraction, "repulsion_weight": lambda epoch: weight},
    ):
        ensemble = make_ensemble(network)
        forde.fit(ensemble, make_method(case, **options), data, **FIT)
        states.append(state_of(ensemble))
    assert equal_bits(*states)


@every_network
@every_particle_method
def test_permuting_members_permutes_results(case: str, network: str) -> None:
    x, y = make_data(network, torch.float64)
    order = [2, 0, 1]
    results = []
    for permute in (False, True):
        ensemble = make_ensemble(network, dtype=torch.float64)
        if make_method(case).shared_head:  # all start from the first member's head, so make that the same one
            for member in ensemble.members[1:]:
                member.head.load_state_dict(ensemble.members[0].head.state_dict())
        if permute:
            ensemble.members = nn.ModuleList([ensemble.members[i] for i in order])
        forde.fit(ensemble, make_method(case), (x, y), **FIT)
        results.append(ensemble.predict(x).member_logits)
    torch.testing.assert_close(results[1], results[0][order], rtol=1e-7, atol=1e-9)


@every_network
@every_method
def test_engines_agree(case: str, network: str) -> None:
    x, y = make_data(network, torch.float64)
    states = []
    for engine in ("eager", "vectorized"):
        ensemble = make_ensemble(network, dtype=torch.float64)
        forde.fit(ensemble, make_method(case), (x, y), **{**FIT, "engine": engine})
        states.append(state_of(ensemble))
    for name, expected in states[0].items():
        torch.testing.assert_close(
            states[1][name], expected, rtol=1e-7, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
        )


@every_network
@every_particle_method
def test_identical_members_and_zero_gradients_stay_finite(case: str, network: str) -> None:
    x, y = make_data(network)
    for zero_head in (False, True):
        ensemble = make_ensemble(network)
        for member in ensemble.members:
            member.load_state_dict(ensemble.members[0].state_dict())
            if zero_head:
                nn.init.zeros_(member.head.weight)
                nn.init.zeros_(member.head.bias)
        method = prepared(case, network, ensemble, x)
        twin = copy.deepcopy(ensemble)
        found = inspect_step(ensemble, method, x, y)
        assert found.forces is None or bool(found.forces.energy.isfinite().all())
        alone = inspect_step(twin, replace(method, space=None, kernel=None, rule=None), x, y)
        for gradients, expected in zip(found.total, alone.total, strict=True):
            for name, gradient in gradients.items():
                assert bool(gradient.isfinite().all()), name
                if getattr(method.kernel, "joint", False):
                    continue  # its eps makes cos² of equal vectors grow with their length: not stationary
                torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)


@every_network
@every_method
def test_save_and_load(case: str, network: str, tmp_path: Path) -> None:
    x, y = make_data(network)
    ensemble = make_ensemble(network)
    forde.fit(ensemble, make_method(case), (x, y), **FIT)
    loaded = forde.Ensemble.load(ensemble.save(tmp_path / "ensemble"), NETWORKS[network])
    assert torch.equal(loaded.predict(x).member_logits, ensemble.predict(x).member_logits)


class Frozen(Fixed):
    """The bandwidth of the unperturbed members: the gradient does not flow through it."""

    def __init__(self, h: Tensor) -> None:
        object.__setattr__(self, "value", h)

    def __call__(self, q: Tensor) -> Tensor:
        return self.value


@every_network
@every_particle_method
def test_gradient_against_finite_differences(case: str, network: str) -> None:
    """Of each member's objective, the other members, the bandwidth and the projection held fixed."""
    x, y = make_data(network, torch.float64)
    ensemble = make_ensemble(network, dtype=torch.float64)
    method = prepared(case, network, ensemble, x, repulsion_scale=0.5)
    separate = replace(method, shared_head=False)
    found = inspect_step(ensemble, separate, x, y)
    phases = make_engine("eager", ensemble, separate)
    base = found.z
    projection = None if base is None else method.space.project(base, found.loss_gradients)

    def see(z: Tensor) -> Tensor:
        return z if projection is None else (z.flatten(1) @ projection.basis.T).unsqueeze(1)

    kernel = method.kernel
    if base is not None and hasattr(kernel, "bandwidth"):
        kernel = replace(kernel, bandwidth=Frozen(kernel(see(base), see(base)).bandwidth))

    def energy(i: int, z: Tensor) -> Tensor:
        K = kernel(see(z), see(base)).values.mean(-1)[i]
        if isinstance(method.rule, Penalty):
            sites = base.shape[1] if method.rule.reduction == "sum" else 1
            return method.rule.strength * sites * (K.sum() - K[i])
        assert isinstance(method.rule, WGD)
        return K.sum().log()

    def objective(i: int) -> float:
        member = ensemble.members[i]
        with torch.no_grad():
            features = member.features(x)
            output = member.head(features)
            value = torch.nn.functional.cross_entropy(output, y)
            for prior in method.priors:
                value = value + weight_prior(prior, member) + output_prior(prior, output, features)
            if base is not None:
                with torch.enable_grad():
                    z = phase_1(phases, x, y).z
                value = value + 0.5 * method.repulsion_weight * energy(i, z)
        return float(value)

    generator = torch.Generator().manual_seed(1)
    for i, (member, gradients) in enumerate(zip(ensemble.members, found.total, strict=True)):
        for name, parameter in member.named_parameters():
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            analytic = float((gradients[name] * direction).sum())
            numeric = central_difference(lambda i=i: objective(i), parameter, direction)
            scale = float(gradients[name].norm() * direction.norm())
            assert abs(analytic - numeric) <= 1e-6 * scale + 1e-9, f"member {i}, {name}"


def output_prior(prior: forde.priors.Prior, output: Tensor, features: Tensor) -> Tensor | float:
    """(1/B) Σ ln(1 + a F²)"""
    if not isinstance(prior, Cauchy):
        return 0.0
    values = output if prior.on == "outputs" else features
    return torch.log1p(prior.coefficient * values**2).sum() / len(values)


def weight_prior(prior: forde.priors.Prior, member: nn.Module) -> Tensor | float:
    if not prior.on_weights:
        return 0.0
    total = torch.zeros((), dtype=torch.float64)
    for name, parameter in member.named_parameters():
        rows = parameter.flatten(1) if parameter.ndim > 1 else parameter.unsqueeze(0)
        if isinstance(prior, EmpCov) and name == f"{prior.fitted_layer}.weight":
            total = total + 0.5 * prior.weight_decay * (rows @ prior.precision * rows).sum()
        else:
            total = total + 0.5 * prior.weight_decay * rows.square().sum()
    return total


def central_difference(function, parameter: Tensor, direction: Tensor, step: float = 1e-4) -> float:
    """Fourth order: the error of the difference itself is then far below the bound."""
    start = parameter.detach().clone()
    values = {}
    with torch.no_grad():
        for k in (-2, -1, 1, 2):
            parameter.copy_(start + k * step * direction)
            with torch.enable_grad():
                values[k] = function()
        parameter.copy_(start)
    return (values[-2] - 8 * values[-1] + 8 * values[1] - values[2]) / (12 * step)


def test_vectorized_members_are_plain_networks_afterwards() -> None:
    """Pickling, copying and further training must not see the stacked storage."""
    x, y = make_data("mlp")
    ensemble = make_ensemble("mlp")
    forde.fit(ensemble, "forde-pca", (x, y), **{**FIT, "engine": "vectorized"})
    storages = {p.untyped_storage().data_ptr() for p in ensemble.parameters()}
    assert len(storages) == len(list(ensemble.parameters()))
    engine = make_engine("vectorized", ensemble, forde.method("deep-ensemble"))
    assert engine.runner.parameters()[0].shape[0] == 3
    engine.close()
